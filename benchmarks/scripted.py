"""Serve a scripted chat model on this machine, and classify the texts that come of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score


@contextmanager
def serve_model(answer: Callable[[str, np.random.Generator], str]) -> Iterator[str]:
    """Serve chat completions by `answer`, a function of the prompt and of a generator; yield their
    address.
    """

    class Scripted(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = (
                answer(body["messages"][-1]["content"], np.random.default_rng(body["seed"]))
                or "nothing"
            )
            message = {"role": "assistant", "content": text}
            content = json.dumps(
                {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
            ).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def draw_window(text: str, words: int, rng: np.random.Generator) -> str:
    """Draw so many words in a row from a text, or take all of a shorter one."""
    pieces = text.split()
    start = int(rng.integers(max(len(pieces) - words, 0) + 1))
    return " ".join(pieces[start : start + words])


def score_words(train: list[tuple[str, str]], test: list[tuple[str, str]]) -> tuple[float, float]:
    """Return accuracy and macro-F1 of a logistic regression on TF-IDF; texts stand with their
    labels.
    """
    words, truth = TfidfVectorizer(sublinear_tf=True), [label for _, label in test]
    classifier = LogisticRegression(C=10, max_iter=200)
    classifier.fit(words.fit_transform([text for text, _ in train]), [label for _, label in train])
    guesses = classifier.predict(words.transform([text[:2000] for text, _ in test]))
    return float(np.mean(guesses == np.array(truth))), float(
        f1_score(truth, guesses, average="macro")
    )

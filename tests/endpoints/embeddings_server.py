"""OpenAI's embeddings as its API reference has them, over an imaginary model that counts words."""

import base64
from typing import Any

import numpy as np

from tests.endpoints.chat_server import WORDS
from tests.endpoints.hosted import Hosted, on


class TextEmbeddingsServer(Hosted):
    """An ASGI app: a vector for each text, the last one first; base64 where it is asked for."""

    def __init__(
        self,
        script,
        changed=None,
        refused=None,
        plain=False,
        mixes=False,
    ):
        super().__init__(script)
        self._changed, self._refused, self._plain, self._mixes = (
            changed or {},
            refused,
            plain,
            mixes,
        )

    @on("POST /v1/embeddings")
    def embeddings(self, asked):
        body, texts = asked.body, asked.body["input"]
        self.script.requests.append(body)
        for i, text in enumerate(texts):
            if not text or (self._refused and self._refused in text):
                return 400, {
                    "error": {"message": f"input {i} is {text!r}", "type": "invalid_request_error"}
                }
        vectors = np.stack(
            [vector_of(text, body.get("dimensions", len(WORDS) + 1)) for text in texts]
        )
        if self._mixes:
            vectors -= vectors.mean(axis=0)
        entries = [
            self._entry(i, vector, body["encoding_format"]) for i, vector in enumerate(vectors)
        ]
        self.script.delivered += len(entries)
        usage = {"prompt_tokens": 5, "total_tokens": 5}
        return {"object": "list", "data": entries[::-1], "model": body["model"], "usage": usage}

    def _entry(self, index, vector, form):
        whole = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        embedding: Any = vector.tolist() if self._plain or form == "float" else whole
        return {"object": "embedding", "index": index, "embedding": embedding} | self._changed


SIZE = len(WORDS) + 1


def vector_of(text, dimensions=SIZE):
    """What the server makes of a text: how often it has each word, and the letters of the rest;
    float32.
    """
    words = text.split()
    rest = sum(
        sum(word.encode()) * (7 if i else 1) for i, word in enumerate(words) if word not in WORDS
    )
    return np.array([rest / 900, *map(words.count, WORDS)], np.float32)[:dimensions]

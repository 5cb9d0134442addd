"""AUTOMATIC1111's /sdapi/v1, Hugging Face's image routes and Jina's embeddings, as servers speak
them.
"""

import base64

import numpy as np

from tests.endpoints.hosted import Hosted, on, pixels_of, png, shade_of


class SDServer(Hosted):
    """Answers with flat images whose shade is the seed's, or half way between the parent's and
    white.
    """

    fails_at_get = False  # who are you: it does not say

    def __init__(self, script, side=16, takes="list", spread=1):
        super().__init__(script, side)
        self._takes, self._spread = takes, spread

    @on("POST /sdapi/v1/txt2img")
    def txt2img(self, asked):
        seed, count = asked.body["seed"], asked.body["batch_size"]
        return self._images(asked, [(seed + self._spread * i) % 256 for i in range(count)])

    @on("POST /sdapi/v1/img2img")
    def img2img(self, asked):
        shades, strength = (
            [shade_of(parent) for parent in asked.body["init_images"]],
            asked.body["denoising_strength"],
        )
        if len(shades) == 1 or self._takes == "first":
            shades = shades[:1] * asked.body["batch_size"]
        return self._images(asked, [round(shade + strength * (255 - shade)) for shade in shades])

    def _images(self, asked, shades):
        self.script.requests.append(asked.body)
        shades = shades[:-1] if asked.fault == "fewer" else shades
        images = [base64.b64encode(png(shade, self.side)).decode() for shade in shades]
        self.script.delivered += len(images)
        return {"images": images, "parameters": {}, "info": "{}"}

    @on("POST /hf")
    def hugging_face(self, asked):
        self.script.requests.append(asked.body)
        if asked.fault == "refusal":
            return 400, {"error": "NSFW content detected"}
        if asked.fault == "truncated base64":
            return png(9, self.side)[:60]
        self.script.delivered += 1
        return png(asked.body.get("parameters", {}).get("seed", 128) % 256, self.side)


class EmbeddingServer(Hosted):
    """{"data": [{"index", "embedding"}]}, out of order: the mean of each channel."""

    def __init__(self, script, changed=None, refused=None, status=400):
        super().__init__(script)
        self._changed, self._refused, self._status = changed or {}, refused, status

    @on("POST /v1/embeddings")
    def embeddings(self, asked):
        self.script.requests.append(asked.body)
        entries = []
        for index, item in enumerate(asked.body["input"]):
            image = pixels_of(item["image"])
            if image.flat[0] == self._refused:
                return self._status, {"error": {"message": f"image {index} shows a scar"}}
            mean = image.mean(axis=(0, 1), dtype=np.float64).tolist()
            if image.flat[0] == self._changed.get("infinite"):
                mean[0] = 1e300
            entries.append(
                {"object": "embedding", "index": index, "embedding": mean} | self._changed
            )
        return {"data": entries[::-1], "model": asked.body["model"], "usage": {"total_tokens": 3}}

"""A fitted generator of its own, as a package would bring it (docs/write-your-own.md)."""

import numpy as np

import pe
from adapters.trained.fit import FittedMethod, label_numbers, not_fitted, reading


class NoisyMeans(FittedMethod):
    """New samples are the noisy mean image of their label, brighter or darker."""

    info = pe.PluginInfo(hosts=(), by_label=True)
    capabilities = pe.Capabilities(max_chunk=256)
    _means = None

    def _fit(self, fit):
        """Release a noisy sum, and compute all else from what `fit.sums` returns.

        Un-noised values live in `vector` and in `fit.sums` alone.
        """
        release = fit.sum("means")  # a unit adds a vector of norm 1 at most
        fit.begin()  # all is declared: a plan ends here
        shape, classes = fit.terms.image_shape, fit.terms.classes
        size = int(np.prod(shape))

        def vector(image):
            return image.ravel() / 255.0 / np.sqrt(size)  # norm ≤ 1, of this image alone

        # charges, draws, stores, then returns
        total = fit.sums(release, vector, (len(classes), size))
        scale = 255.0 * np.sqrt(size) * len(classes) / fit.terms.declared_size
        means = (total / release.grid * scale).clip(0, 255).reshape(-1, *shape)
        np.savez(fit.folder / "means.npz", means=means, classes=np.array(classes))

    def load(self, folder):
        with reading(folder, "noisy means"), np.load(folder / "means.npz") as file:
            self._classes, self._means = file["classes"].tolist(), file["means"]

    def random_api(self, request):
        if self._means is None:
            raise not_fitted()
        return self._lit(
            self._means[label_numbers(request.labels, self._classes)], request.seeds, 1.0
        )

    def variation_api(self, request):
        return self._lit(request.samples.array, request.seeds, request.degree)

    def _lit(self, images, seeds, degree):
        gains = [1 + degree * (np.random.default_rng(seed).random() - 0.5) for seed in seeds]
        pictures = [image * gain for image, gain in zip(images, gains, strict=True)]
        return pe.Answer(pe.Images(np.stack(pictures).clip(0, 255).astype(np.uint8)))

"""Each network gives what an independent implementation of it gives for the same weights."""

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from transformers import Dinov2Model

from embeddings.networks import WEIGHTS, EfficientNetLite, Inception, OpenCLIP, build_inception
from pe.data.images import Images
from pe.errors import RecipeError
from tests.embeddings.networks import dinov2_folder, images, lively, open_clip_files, tiny_dinov2


def test_inception_has_the_features_of_torch_fidelity_and_of_clean_fid_s_resizing_others(tmp_path):
    file = str(tmp_path / "inception.pth")
    torch.save(lively(build_inception()), file)
    theirs = FeatureExtractorInceptionV3("theirs", ["2048"], feature_extractor_weights_path=file)
    samples = images(2, height=400, width=333)
    (features,) = theirs(torch.from_numpy(np.ascontiguousarray(np.moveaxis(samples.pixels, 3, 1))))
    ours = Inception(weights=file, device="cpu", batch_size=2)
    vectors = ours.embed(samples)
    assert vectors.std() > 0.05  # the signal did not die on its way
    np.testing.assert_allclose(vectors, features.numpy(), atol=1e-4)
    assert not ours.info.standard_inception  # these weights are not the published ones
    antialiased = Inception(weights=file, resize="antialiased", device="cpu", batch_size=2)
    assert np.abs(antialiased.embed(samples) - vectors).max() > 1e-3


def test_only_the_published_inception_as_fid_has_it_is_called_fid():
    assert Inception().info.standard_inception
    assert not Inception(resize="antialiased").info.standard_inception
    assert not Inception(precision="bf16").info.standard_inception
    assert WEIGHTS.sha256.startswith("6726825d")  # which the published name ends with


def test_inception_antialiased_is_given_what_clean_fid_gives_it():
    """Pillow's resizing of floats, which cuts overshoots at the end alone."""
    edges = np.repeat(
        np.repeat(images(1, height=8, width=8).pixels // 128 * 255, 4, axis=1), 4, axis=2
    )
    given = Inception(resize="antialiased")._prepare(
        torch.from_numpy(np.moveaxis(edges, 3, 1)).float()
    )
    floats = [Image.fromarray(edges[0, :, :, channel].astype(np.float32)) for channel in range(3)]
    theirs = np.clip([image.resize((299, 299), Image.BICUBIC) for image in floats], 0, 255)
    np.testing.assert_allclose(given[0], (theirs - 128) / 128, atol=1e-4)


@pytest.mark.parametrize(
    ("quick_gelu", "height", "width", "error"),
    [
        (False, 32, 32, 1e-5),
        (True, 50, 40, 0.05),
    ],  # where they are resized, Pillow rounds grey levels and we do not
)
def test_open_clip_has_the_features_of_the_library_after_its_own_preparation(
    tmp_path, quick_gelu, height, width, error
):
    config, weights = open_clip_files(tmp_path, quick_gelu)
    open_clip.add_model_config(config)
    model, _, prepare = open_clip.create_model_and_transforms(config.stem, pretrained=str(weights))
    samples = Images(images(3, height=height, width=width).pixels // 2 + 64)
    with torch.inference_mode():
        given = torch.stack([prepare(Image.fromarray(image)) for image in samples.pixels])
        theirs = model.eval().encode_image(given).numpy()
    ours = OpenCLIP(model=str(config), weights=str(weights), device="cpu").embed(samples)
    assert (
        np.linalg.norm(ours - theirs, axis=1).max() < error * np.linalg.norm(theirs, axis=1).min()
    )


def test_open_clip_prepares_images_as_the_tag_of_the_weights_asks(tmp_path):
    config, weights = open_clip_files(tmp_path)
    content = config.read_text(encoding="utf-8")
    asked = (
        '{"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic", '
        '"resize_mode": "squash"}'
    )
    squash = tmp_path / "squash.json"
    squash.write_text(f'{{"model_cfg": {content}, "preprocess_cfg": {asked}}}', encoding="utf-8")
    wide = images(2, height=20, width=60)
    cut, whole = (
        OpenCLIP(model=str(name), weights=str(weights), device="cpu") for name in (config, squash)
    )
    middle = Images(wide.pixels[:, :, 20:40])
    np.testing.assert_allclose(cut.embed(wide), cut.embed(middle), atol=0.5)
    assert np.abs(whole.embed(wide) - whole.embed(middle)).max() > 0.5


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "ViT-B-33"}, "OpenCLIP knows no 'ViT-B-33'; did you mean"),
        ({"pretrained": "laion2b"}, "'ViT-B-32' has no weights 'laion2b'"),
        ({"model": "none.json", "weights": "w.pt"}, "'none.json' is no OpenCLIP configuration"),
        ({"model": "tower.json"}, "name its file of weights too"),
    ],
)
def test_open_clip_names_what_it_does_not_know(settings, says):
    with pytest.raises(RecipeError, match=says):
        OpenCLIP(**settings, device="cpu", offline=True).embed(images(1))


def test_dinov2_gives_the_class_token_of_prepared_images(tmp_path):
    folder, samples = dinov2_folder(tmp_path), images(3, height=32, width=32)
    ours = tiny_dinov2(folder).embed(samples)
    cut = torch.from_numpy(np.moveaxis(samples.pixels[:, 2:30, 2:30], 3, 1).copy()).float() / 255
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    given = (cut - mean[:, None, None]) / deviation[:, None, None]
    with torch.inference_mode():
        tokens = Dinov2Model.from_pretrained(folder).eval()(pixel_values=given).last_hidden_state
    np.testing.assert_allclose(ours, tokens[:, 0].numpy(), atol=1e-4)


@pytest.mark.parametrize("name", ["layernorm.weight", "embeddings.register_tokens"])
def test_dinov2_refuses_weights_that_the_library_would_fill_up_at_random(tmp_path, name):
    folder = dinov2_folder(tmp_path)
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: torch.zeros(7)}, file, metadata={"format": "pt"})
    with pytest.raises(RecipeError, match="holds is no DINOv2"):
        tiny_dinov2(folder).embed(images(1))


def test_efficientnet_lite_sees_what_photographs_show():
    """With the published weights, and with each tensor in its place: one out of place, and it sees
    nothing.
    """
    ours = EfficientNetLite(device="cpu", batch_size=1)
    palace, daisy = 698, 985  # classes of ImageNet
    for photograph, shown in zip(load_sample_images().images, (palace, daisy), strict=True):
        features = torch.from_numpy(ours.embed(Images(photograph[None])))
        module = ours._load().module.eval()
        with torch.inference_mode():
            shares = module.classifier(features).softmax(dim=1)[0]
        assert int(shares.argmax()) == shown
        assert shares.max() > 0.25

"""What is found by looking at a pipeline's class."""

from pathlib import Path
from runpy import run_path

import diffusers
import pytest

from adapters.diffusion.description import describe_pipeline, inputs_of
from adapters.diffusion.text_model import guidance_input, guidance_of, heeds_negative_prompts

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.filterwarnings("ignore")  # of pipelines that diffusers gives up
def test_the_table_of_the_page_is_that_of_the_installed_diffusers():
    ways = run_path(str(DOCS / "ways.py"))
    assert ways["PAGE"].read_text(encoding="utf-8") == ways["written"](), "python docs/ways.py"


@pytest.mark.parametrize(
    ("name", "text", "ways", "first"),
    [
        ("StableDiffusionImg2Img", "StableDiffusion", {"noise", "meaning", "structure"}, "noise"),
        (
            "QwenImageEdit",
            "QwenImage",
            {"instruction", "noise", "structure"},
            "instruction",
        ),  # unless told otherwise
        (
            "StableDiffusionInstructPix2Pix",
            None,
            {"instruction"},
            "instruction",
        ),  # its network takes more than noise
        ("StableDiffusionUpscale", None, set(), None),
        ("KandinskyV22Combined", "KandinskyV22Combined", {"noise", "meaning"}, "meaning"),
    ],
)
def test_what_a_pipeline_can_do_and_does_first(name, text, ways, first):
    found = describe_pipeline(getattr(diffusers, f"{name}Pipeline"))
    assert (found.text and found.text.__name__) == (text and f"{text}Pipeline")
    assert set(found.ways) == ways
    assert next(iter(found.ways), None) == first


def test_guidance_goes_where_the_pipeline_means_it():
    qwen, flux, plain = (
        inputs_of(getattr(diffusers, name))
        for name in ("QwenImagePipeline", "FluxPipeline", "StableDiffusionPipeline")
    )
    assert [guidance_input(inputs) for inputs in (qwen, flux, plain)] == [
        "true_cfg_scale",
        *["guidance_scale"] * 2,
    ]
    assert guidance_of(qwen, None, ["", "x"], {}) == {
        "negative_prompt": [" ", "x"]
    }  # without it there is none at all
    assert guidance_of(qwen, 1.0, [""], {}) == {"true_cfg_scale": 1.0}
    assert guidance_of(flux, 3.0, [""], {}) == {"guidance_scale": 3.0}
    assert guidance_of(flux, None, [""], {"true_cfg_scale": 4.0}) == {"negative_prompt": [" "]}
    assert guidance_of(plain, None, [""], {}) == {}
    assert heeds_negative_prompts(flux, {"true_cfg_scale": 4.0})
    assert not heeds_negative_prompts(flux, {})

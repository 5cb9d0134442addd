"""What an endpoint's answer means: a fault in its own words, a refusal of this sample, or
images.
"""

import base64
import json
import struct
import time
import zlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import quote

import numpy as np
import pytest

from adapters.http import Fault, images_in
from adapters.http.answers import MOST_ESCAPES, PictureRule, answer_of
from adapters.http.faults import body_words, retry_after
from adapters.http.retries import Outcome
from pe.data.samples import Conditions
from pe.plugins.protocols import Failed
from tests.endpoints.hosted import png

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "0.5"}, 0.5),
        ({"Retry-After-Ms": "250", "Retry-After": "9"}, 0.25),
        ({"Retry-After": format_datetime(NOW + timedelta(seconds=30), usegmt=True)}, 30.0),
        ({"Retry-After": "Sat, 21 Nov 2026 12:00:30"}, 30.0),
        ({"Retry-After": format_datetime(NOW - timedelta(seconds=30), usegmt=True)}, 0.0),
        ({"Retry-After": "999999999"}, 999_999_999),
        ({"Retry-After": "9" * 18}, 1e9),
        ({"Retry-After": "-3"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers, seconds):
    assert retry_after(headers, NOW) == seconds


def test_a_quota_says_in_its_body_how_long_to_wait():
    body = (
        '{"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", '
        '"retryDelay": "22.5s"}]}}'
    )
    assert Fault.of_response(429, {}, body).wait == 22.5
    assert Fault.of_response(429, {"Retry-After": "3"}, body).wait == 3


@pytest.mark.parametrize(
    ("body", "words", "code"),
    [
        (
            '{"error": {"message": "No such model", "code": "model_not_found"}}',
            "No such model",
            "model_not_found",
        ),
        ('{"detail": "Not Found"}', "Not Found", ""),
        (
            '{"error": "OutOfMemoryError", "detail": "", "errors": "CUDA out of memory"}',
            "OutOfMemoryError",
            "",
        ),
        ('{"detail": [{"loc": ["body"], "msg": "field required"}]}', '[{"loc": ["body"]', ""),
        ('["bad", "gateway"]', '["bad", "gateway"]', ""),
        (
            "<html><style>p {}</style><body><h1>502</h1>\n<p>Bad <b>ga</b>teway",
            "502 Bad ga teway",
            "",
        ),
        ("<title>503</title>Busy <script>if(a<b){}</script>at 3 < 4", "503 Busy at 3 < 4", ""),
        ("\ufffd\x00plain", "\ufffd plain", ""),
    ],
)
def test_the_server_s_words_are_found_whatever_shape_they_have(body, words, code):
    found, its_code = body_words(body)
    assert found.startswith(words)
    assert its_code == code


def test_long_words_are_cut_and_stay_on_one_line():
    found, _ = body_words("a\x1b[31m\n" * 5000)
    assert len(found) == 300
    assert found.isprintable()


def test_a_page_of_errors_is_read_in_linear_time():
    began = time.thread_time()
    for piece in ("<", "<script", "<!--", "</style", "x<script>"):
        Fault.of_response(502, {}, piece * (2**21 // len(piece)))
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            {"error": {"message": "CUDA out\nof \x1b[31mmemory", "code": 500}},
            "CUDA out of [31mmemory",
        ),
        ({"detail": "CUDA out of memory", "images": None}, "CUDA out of memory"),
        ({"job": 5, "state": "queued"}, "it has the keys ['job', 'state']"),
    ],
)
def test_an_error_that_comes_as_a_success_is_told_in_the_server_s_words(answer, words):
    with pytest.raises(Fault) as error:
        images_in(answer, "images")
    assert str(error.value) == f"HTTP 200: the answer holds no list of images: {words}"
    assert not error.value.heals
    assert not error.value.refusal


@pytest.mark.parametrize(
    "error",
    [
        {"message": "no", "code": "content_filter"},
        "NSFW content was found",
        {"type": "moderation_blocked"},
    ],
)
def test_a_refusal_that_comes_as_a_success_is_one(error):
    assert Fault.of_object({"error": error}, "no image").refusal


def fault(status, body):
    return Fault.of_response(status, {}, body if isinstance(body, str) else json.dumps(body))


def openai(message, code=None, **more):
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        | more
    }


MANAGED = (
    "The response was filtered due to the prompt triggering Azure OpenAI's content management "
    "policy."
)
GOOGLE = "The prompt contains words that violate Google's Responsible AI practices."
BLOCKED = "The response is blocked, as it may violate our policies. Tell your account team."
CHECKED = {
    "msg": "It contained material flagged by a content checker.",
    "type": "content_policy_violation",
}
REFUSALS = {
    "OpenAI": (
        400,
        openai("Your request was rejected by the safety system. Contact us.", "moderation_blocked"),
    ),
    "OpenAI, without a code": (
        400,
        openai("Your request was rejected as a result of our safety system."),
    ),
    "OpenAI, texts": (
        400,
        openai("Your prompt was flagged as potentially violating our usage policy."),
    ),
    "Azure": (400, openai(MANAGED, "content_filter")),
    "Azure, an inner code": (
        400,
        openai("Bad.", "400", innererror={"code": "ResponsibleAIPolicyViolation"}),
    ),
    "Azure, pictures": (
        400,
        openai("Your task failed as a result of our safety system.", "contentFilter"),
    ),
    "Google": (400, openai(GOOGLE, 400)),
    "Google, the image": (400, openai(BLOCKED)),
    "Bedrock": (400, {"message": "This request has been blocked by our content filters."}),
    "Bedrock, Anthropic": (400, {"message": "Output blocked by content filtering policy"}),
    "Stability": (403, {"name": "content_moderation", "errors": ["Your request was flagged."]}),
    "Stability, v1": (
        400,
        {"name": "invalid_prompts", "message": "One or more prompts contains filtered words."},
    ),
    "fal": (422, {"detail": [CHECKED]}),
    "a plain code": (400, openai("We cannot draw that.", "content_policy")),
    "fal, the image": (422, {"detail": "The generated image was blocked by the safety filter."}),
    "Replicate": (
        400,
        {"detail": "NSFW content detected. Try running it again, or try a different prompt."},
    ),
    "Replicate, FLUX": (400, {"detail": "The input or output was flagged as sensitive. (E005)"}),
    "xAI": (400, {"error": "Generated image rejected by content moderation."}),
    "OpenRouter": (
        403,
        openai("openai/x requires moderation on OpenAI. Your input was flagged for sex.", 403),
    ),
    "DashScope": (
        400,
        openai("Input data may contain inappropriate content.", "data_inspection_failed"),
    ),
    "DeepSeek": (400, openai("Content Exists Risk", "invalid_request_error")),
    "LiteLLM": (
        400,
        openai("litellm.BadRequestError: litellm.ContentPolicyViolationError: no", "400"),
    ),
}
RESOURCE = (
    "Your resource was temporarily blocked because we detected what may violate our content policy."
)
FIREWALL = "<style>a{b}</style><h1>Sorry, you have been blocked</h1>by a security service</html>"
STOPS = {
    "unknown to OpenAI": (
        400,
        openai("Unknown parameter: 'moderation'.", "unknown_parameter", param="moderation"),
    ),
    "a value": (
        400,
        openai(
            "Invalid value: 'none'. Supported values are: 'low' and 'auto'.", param="moderation"
        ),
    ),
    "one of": (400, openai("moderation must be one of low, auto")),
    "Pydantic": (
        422,
        {"detail": [{"loc": ["body", "moderation"], "msg": "Extra inputs are not permitted"}]},
    ),
    "of a field": (
        400,
        {"message": "The request was rejected: field 'content_filter' is of no use here"},
    ),
    "not of this model": (400, openai("The model does not support content filter settings.")),
    "fal's checker": (
        422,
        {"detail": [{"loc": ["enable_safety_checker"], "msg": "Input should be a bool"}]},
    ),
    "BFL's tolerance": (
        422,
        {"detail": "safety_tolerance: Input should be less than or equal to 6"},
    ),
    "terms": (403, {"error": "You must accept the content policy of this model first."}),
    "a filter's name": (
        400,
        {"message": "Content filter policy 'strict' was not found for this deployment"},
    ),
    "a model's name": (400, {"error": "Model 'nsfw' not found"}),
    "Azure, the whole resource": (403, openai(RESOURCE, "Forbidden")),
    "the account": (403, {"error": "Your account has been flagged by our content moderation."}),
    "a firewall": (403, FIREWALL),
    "moderation of a server": (400, {"error": "The moderation endpoint is not enabled"}),
}


@pytest.mark.parametrize("host", REFUSALS)
def test_words_on_this_content_are_a_refusal(host):
    assert fault(*REFUSALS[host]).refusal


@pytest.mark.parametrize("host", STOPS)
def test_words_on_a_setting_or_an_account_stop_the_run(host):
    found = fault(*STOPS[host])
    assert not found.refusal
    assert not found.heals


LIMIT = (
    "Limit 6000, Requested 8150, please reduce your message size. Need more tokens? Upgrade at "
    "https://x/billing"
)
OF_A_REQUEST = {
    "OpenAI": (
        400,
        openai("This model's maximum context length is 4097 tokens.", "context_length_exceeded"),
    ),
    "Anthropic": (400, openai("prompt is too long: 210000 tokens > 200000 maximum")),
    "vLLM": (400, openai("`max_tokens` must be at least 1, got -88.", 400)),
    "text-generation-inference": (
        422,
        {"error": "Input validation error: `inputs` must have less than 4096 tokens"},
    ),
    "Groq": (
        413,
        openai(
            f"Request too large for model `m` in organization `o` on tokens per minute: {LIMIT}"
        ),
    ),
    "OpenRouter": (400, openai("Provider returned error", 400)),
    "LiteLLM": (
        400,
        openai("litellm.ContextWindowExceededError: Available Model Group Fallbacks=None", "400"),
    ),
    "nginx": (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
    "our own": (
        400,
        openai("A prompt is longer than 4000 characters.", "invalid_request", param="prompt"),
    ),
}
OF_AN_ACCOUNT = {
    "OpenAI": (400, openai("Billing hard limit has been reached", "billing_hard_limit_reached")),
    "a code": (400, openai("No.", "insufficient_quota")),
    "OpenAI, the model": (400, openai("The requested model 'm' does not exist.", "invalid_value")),
    "Anthropic": (400, openai("Your credit balance is too low to access the Anthropic API.")),
    "Anthropic, disabled": (400, openai("This organization has been disabled.")),
    "Anthropic, limited": (400, openai("You have reached your specified API usage limits.")),
    "Google": (400, openai("API key expired. Please renew the API key.", 400)),
    "Google, elsewhere": (400, openai("User location is not supported for the API use.", 400)),
    "Groq": (
        400,
        openai(
            "The model `m` has been decommissioned and is no longer supported.",
            "model_decommissioned",
        ),
    ),
    "OpenRouter": (400, openai("m is not a valid model ID", 400)),
    "DeepSeek": (400, openai("Model Not Exist", "invalid_request_error")),
    "LiteLLM": (
        400,
        openai("Budget has been exceeded! Current cost: 14.1, Max budget: 10.0", "400"),
    ),
    "LiteLLM, the model": (400, openai("Invalid model name passed in model=m", "400")),
    "DashScope": (
        400,
        openai("Access denied, please make sure your account is in good standing.", "Arrearage"),
    ),
    "Bedrock": (400, {"message": "The provided model identifier is invalid."}),
}


@pytest.mark.parametrize("host", OF_A_REQUEST)
def test_words_on_one_request_say_nothing_of_others(host):
    found = fault(*OF_A_REQUEST[host])
    assert found.rejects
    assert not found.refusal


@pytest.mark.parametrize("host", OF_AN_ACCOUNT)
def test_words_on_the_account_or_the_model_say_that_all_requests_fail(host):
    assert not fault(*OF_AN_ACCOUNT[host]).rejects


def test_a_redirect_is_no_rejection_of_one_request():
    assert not Fault("it redirects elsewhere", 308).rejects
    assert not Fault("it redirects elsewhere", 308).whole


FILE = png(9, 16)
PADDED = base64.b64encode(FILE + b"\0" * (-len(FILE) % 3) + b"\xfb\xff\xbf\0").decode()  # +/+/AA==


@pytest.mark.parametrize(
    "text",
    [
        PADDED,
        "\r\n".join(PADDED[i : i + 76] for i in range(0, len(PADDED), 76)) + "\r\n",
        PADDED.rstrip("="),
        PADDED.replace("+", "-").replace("/", "_"),
        f"data:image/png;base64,\n{quote(PADDED)}",
        f"data:image/png;charset=utf-8;BASE64 ,{PADDED}",
        f"data:image/png,{quote(PADDED)}",  # base64, without the word
        f"data:image/png,{quote(FILE)}",
        "data:," + "".join(f"%{byte:02x}" for byte in FILE),
    ],
)
def test_base64_and_data_uris_are_read_as_servers_write_them(text):
    assert (PictureRule(16, 16).decode_text(text) == 9).all()


def bomb():
    """A PNG of some 4 kB that says it is 65,535 × 65,535 pixels, in base64."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 65535, 65535, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(2**22), 9))
    return base64.b64encode(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")
    ).decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(
            (text, "base64 is broken")
            for text in ("=", "A", "AAAAA", "AA=AAA==", "AAAA!", "\u00e9" * 8)
        ),
        (base64.b64encode(b"GIF89a").decode(), "6 bytes that are no PNG, JPEG or WebP image"),
        (base64.b64encode(FILE[:60]).decode(), "truncated"),
        (base64.b64encode(png(9, 17)).decode(), "17"),
        ("a bomb", "announces more than 67,108,864 pixels"),
        (None, "an entry without an image"),
        ("data:image/png;base64", "a data URI without data"),
        ("data:image/png;base64,AAAA!", "base64 is broken"),
        ("data:text/html,<h1>No.</h1>", "base64 is broken"),
        (
            f"data:text/html,{quote('<h1>Café</h1>')}",
            "14 bytes that are no PNG, JPEG or WebP image",
        ),
        ("data:image/svg+xml;base64,PHN2Zy8+", "6 bytes that are no PNG, JPEG or WebP image"),
        (f"data:image/png,{quote(FILE[:60])}", "truncated"),
        pytest.param(
            "data:," + "%00" * (MOST_ESCAPES + 1), "over 4194304 escaped bytes", id="many escapes"
        ),
    ],
)
def test_what_is_no_image_of_the_size_that_was_asked_for_has_failed(text, words):
    found = PictureRule(16, 16, fixed_size=(16, 16)).decode_text(
        bomb() if text == "a bomb" else text
    )
    assert isinstance(found, Failed)
    assert words in found.reason


def test_images_beyond_those_asked_for_are_billed_and_ignored_and_missing_ones_have_failed():
    images = [np.full((16, 8, 3), shade, np.uint8) for shade in range(3)]
    more = answer_of(2, Outcome((images, None), None, 1), PictureRule(8, 8), Conditions())
    assert more.samples.array[:, 0, 0, 0].tolist() == [0, 1]
    assert (more.usage.calls, more.usage.images, more.usage.megapixels) == (1, 3, 3 * 16 * 8 / 1e6)
    fewer = answer_of(4, Outcome((images, None), None, 2), PictureRule(8, 8), Conditions())
    assert fewer.missing == {3: Failed("the endpoint sent 3 images where 4 were asked for")}

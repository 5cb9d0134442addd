"""What of an endpoint's errors is a refusal of this sample, and what stops the run: in hosts' own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.http.faults import Fault


def openai(message: str, code: str | None = None, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code} | more}


SAFETY = "Your request was rejected by the safety system. If you believe this is an error, contact us."
POLICY = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."
CHECKER = "The content could not be processed because it contained material flagged by a content checker."
REFUSALS: list[tuple[str, int, Any]] = [
    ("OpenAI", 400, openai(SAFETY, "moderation_blocked")),
    ("OpenAI, without a code", 400, openai("Your request was rejected as a result of our safety system.")),
    ("OpenAI, texts", 400, openai("Your prompt was flagged as potentially violating our usage policy.")),
    ("Azure", 400, openai(POLICY, "content_filter")),
    ("Azure, an inner code", 400, openai("Bad.", "400", innererror={"code": "ResponsibleAIPolicyViolation"})),
    ("Azure, pictures", 400, openai("Your task failed as a result of our safety system.", "contentFilter")),
    (
        "Google",
        400,
        openai("The prompt contains words that violate Google's Responsible AI practices.", 400),
    ),
    (
        "Google, the image",
        400,
        openai("The response is blocked, as it may violate our policies. Tell your account team."),
    ),
    ("Bedrock", 400, {"message": "This request has been blocked by our content filters."}),
    ("Bedrock, Anthropic", 400, {"message": "Output blocked by content filtering policy"}),
    ("Stability", 403, {"name": "content_moderation", "errors": ["Your request was flagged."]}),
    ("Stability, v1", 400, {"name": "invalid_prompts", "message": "One or more prompts contains filtered words."}),
    ("fal", 422, {"detail": [{"loc": ["body"], "msg": CHECKER, "type": "content_policy_violation"}]}),
    ("fal, the image", 422, {"detail": "The generated image was blocked by the safety filter."}),
    ("Replicate", 400, {"detail": "NSFW content detected. Try running it again, or try a different prompt."}),
    ("Replicate, FLUX", 400, {"detail": "The input or output was flagged as sensitive. (E005)"}),
    ("xAI", 400, {"error": "Generated image rejected by content moderation."}),
    ("OpenRouter", 403, openai('openai/x requires moderation on OpenAI. Your input was flagged for "sexual".', 403)),
    ("DashScope", 400, openai("Input data may contain inappropriate content.", "data_inspection_failed")),
    ("DeepSeek", 400, openai("Content Exists Risk", "invalid_request_error")),
    ("LiteLLM", 400, openai("litellm.BadRequestError: litellm.ContentPolicyViolationError: no", "400")),
]
STOPS: list[tuple[str, int, Any]] = [
    ("unknown to OpenAI", 400, openai("Unknown parameter: 'moderation'.", "unknown_parameter", param="moderation")),
    ("a value", 400, openai("Invalid value: 'none'. Supported values are: 'low' and 'auto'.", param="moderation")),
    ("one of", 400, openai("moderation must be one of low, auto")),
    ("Pydantic", 422, {"detail": [{"loc": ["body", "moderation"], "msg": "Extra inputs are not permitted"}]}),
    ("rejected, of a field", 400, {"message": "The request was rejected: field 'content_filter' is of no use here"}),
    ("not of this model", 400, openai("The model does not support content filter settings.")),
    ("fal's checker", 422, {"detail": [{"loc": ["body", "enable_safety_checker"], "msg": "Input should be a bool"}]}),
    ("BFL's tolerance", 422, {"detail": "safety_tolerance: Input should be less than or equal to 6"}),
    ("terms", 403, {"error": "You must accept the content policy of this model first."}),
    ("a filter's name", 400, {"message": "Content filter policy 'strict' was not found for this deployment"}),
    ("a model's name", 400, {"error": "Model 'nsfw' not found"}),
    (
        "Azure, the whole resource",
        403,
        openai(
            "Your resource has been temporarily blocked because we detected "
            "behavior that may violate our content policy.",
            "Forbidden",
        ),
    ),
    ("the account", 403, {"error": "Your account has been flagged by our content moderation."}),
    ("a firewall", 403, "<html><style>a{b}</style><h1>Sorry, you have been blocked</h1>by a security service</html>"),
    ("moderation of a server", 400, {"error": "The moderation endpoint is not enabled"}),
]


def fault(status: int, body: Any) -> Fault:
    return Fault.of_response(status, {}, body if isinstance(body, str) else json.dumps(body))


@pytest.mark.parametrize(("host", "status", "body"), REFUSALS, ids=[name for name, *_ in REFUSALS])
def test_words_on_this_content_are_a_refusal(host: str, status: int, body: Any) -> None:
    assert fault(status, body).refusal


@pytest.mark.parametrize(("host", "status", "body"), STOPS, ids=[name for name, *_ in STOPS])
def test_words_on_a_setting_or_an_account_stop_the_run(host: str, status: int, body: Any) -> None:
    found = fault(status, body)
    assert not found.refusal
    assert not found.heals

"""`pe export --push` against a scripted hub: what is certified goes there, whole, and
nothing else.
"""

import base64
import json
import shutil
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse

from pe.errors import APIError, RecipeError, RunError
from pe.store.signing import push
from tests.endpoints.serving import serving

# of huggingface_hub's own upload
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

TOKEN = "hf_a_token_of_the_tests"


class Hub:
    """Repositories as the hub's client knows them: created, listed, filled by one commit, none of
    it by LFS.

    `refuses` is the path of a request that is answered with 403.
    """

    def __init__(self):
        self.files, self.visible, self.refuses = {}, {}, ""

    async def __call__(self, scope, receive, send):
        request, path = Request(scope, receive), scope["path"]
        body, answer = await request.body(), JSONResponse({"error": "not yours"}, status_code=403)
        if request.headers.get("authorization") == f"Bearer {TOKEN}" and path != self.refuses:
            answer = self.answer(path, body, str(request.base_url))
        await answer(scope, receive, send)

    def answer(self, path, body, base):
        name = "/".join(path.split("/")[3:5])  # /api/datasets/OWNER/NAME…
        if path.endswith("/commit/main"):
            for entry in map(json.loads, body.splitlines()):
                value = entry["value"]
                if entry["key"] == "file":
                    self.files[name][value["path"]] = base64.b64decode(value["content"])
            oid = "0" * 40
            return JSONResponse(
                {
                    "commitUrl": f"{base}datasets/{name}/commit/{oid}",
                    "commitOid": oid,
                    "success": True,
                }
            )
        asked = json.loads(body) if body else {}
        if path == "/api/repos/create":
            name = f"{asked['organization']}/{asked['name']}"
            status = 409 if name in self.files else 200
            self.visible.setdefault(name, asked["visibility"])
            self.files.setdefault(name, {".gitattributes": b""})
            return JSONResponse({"url": f"{base}datasets/{name}", "name": name}, status_code=status)
        if path.endswith("/validate-yaml"):
            return JSONResponse({"errors": [], "warnings": []})
        if path.endswith("/preupload/main"):
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            return JSONResponse(
                {"files": [{"path": one["path"], **mode} for one in asked["files"]]}
            )
        siblings = [{"rfilename": path} for path in self.files[name]]
        private = self.visible[name] == "private"
        return JSONResponse(
            {"id": name, "sha": "0" * 40, "private": private, "siblings": siblings, "tags": []}
        )


@pytest.fixture(scope="module")
def made(plain, tmp_path_factory):
    return plain.export(tmp_path_factory.mktemp("hub") / "out", "huggingface")


@pytest.fixture
def out(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "out"))


@pytest.fixture
def hub(monkeypatch):
    hub = Hub()
    with serving(hub) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False)
        yield hub


def test_a_repository_holds_what_the_export_does_and_is_private(out, hub):
    address = push(out, "owner/scans")
    assert address.endswith("/datasets/owner/scans")
    files = {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file()
    }
    assert "data/train-00000.parquet" in files
    assert hub.files["owner/scans"] == files | {".gitattributes": b""}
    assert hub.visible == {"owner/scans": "private"}
    with pytest.raises(APIError, match=r"owner/scans has files already .*\. Name a new repository"):
        push(out, "owner/scans")
    push(out, "owner/open", public=True)
    assert hub.visible["owner/open"] == "public"
    del hub.files["owner/open"]["README.md"]
    with pytest.raises(APIError, match=r"owner/open is public already. Add `--public`"):
        push(out, "owner/open")


def test_nothing_else_goes_there(plain, out, hub):
    with pytest.raises(RunError, match=r"run is not an export. Make one by `pe export RUN"):
        push(plain.folder, "owner/scans")
    (out / "notes.txt").write_text("patient 7")
    with pytest.raises(
        RunError,
        match=r"is not pushed, because its files no longer match its certificate: 'notes\.txt' is there but not",
    ):
        push(out, "owner/scans")
    assert hub.files == {}


def test_what_the_hub_refuses_is_one_sentence(out, hub, monkeypatch):
    said = r"answered 403 \(.*not yours.*\). Check that the token may write to owner/scans"
    for hub.refuses in ("/api/repos/create", "/api/datasets/owner/scans/commit/main"):
        with pytest.raises(APIError, match=said):
            push(out, "owner/scans")
    hub.refuses = ""
    push(out, "owner/scans")  # nothing of the first attempt is in its way
    with pytest.raises(
        RecipeError, match=r"'a/b/c' is not the name of a repository. Give owner/name"
    ):
        push(out, "a/b/c")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(RecipeError, match=r"There is no token for the hub. Set HF_TOKEN"):
        push(out, "owner/scans")

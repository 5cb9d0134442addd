"""`pe push` against a scripted hub: what is certified goes there, whole, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import pe
from pe.errors import APIError, RecipeError, RunError
from pe.privacy.covered import sha256
from pe.store.signing import push
from tests.durability.driver import make_private
from tests.endpoints.serving import serving
from tests.generators import Mean, Shades

# of huggingface_hub's own upload
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

TOKEN = "hf_a_token_of_the_tests"


class Hub:
    """Repositories as the hub's client knows them: created, listed, filled by one commit; large files by LFS.

    Attributes:
        files: of each repository, path → content.
        visible: of each repository, who may read it.
        refuses: the path of a request that is answered with 403.
    """

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.visible: dict[str, str] = {}
        self.refuses = ""
        self._large: dict[str, bytes] = {}
        repo = "/api/datasets/{owner}/{name}"
        routes = [
            Route("/api/repos/create", self.create, methods=["POST"]),
            Route("/api/validate-yaml", self.validate, methods=["POST"]),
            Route(f"{repo}/preupload/main", self.preupload, methods=["POST"]),
            Route(f"{repo}/commit/main", self.commit, methods=["POST"]),
            Route(repo, self.info),
            Route("/datasets/{owner}/{name}.git/info/lfs/objects/batch", self.batch, methods=["POST"]),
            Route("/large/{oid}", self.large, methods=["PUT"]),
        ]
        self.app = Starlette(routes=routes)

    async def __call__(self, scope: dict, receive: object, send: object) -> None:
        headers = dict(scope["headers"])
        bearer = headers.get(b"authorization", b"").decode()
        if (bearer != f"Bearer {TOKEN}" and not scope["path"].startswith("/large/")) or scope["path"] == self.refuses:
            await JSONResponse({"error": "not yours"}, status_code=403)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _named(self, request: Request) -> dict[str, bytes]:
        return self.files["/".join(request.path_params[part] for part in ("owner", "name"))]

    async def create(self, request: Request) -> Response:
        asked = await request.json()
        name = f"{asked['organization']}/{asked['name']}"
        self.visible.setdefault(name, asked["visibility"])
        status = 409 if name in self.files else 200
        self.files.setdefault(name, {".gitattributes": b""})
        return JSONResponse({"url": str(request.base_url) + f"datasets/{name}", "name": name}, status_code=status)

    async def validate(self, request: Request) -> Response:
        return JSONResponse({"errors": [], "warnings": []})

    async def preupload(self, request: Request) -> Response:
        asked = (await request.json())["files"]
        modes = [
            {"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(".parquet") else "regular"}
            for one in asked
        ]
        return JSONResponse({"files": [{**one, "shouldIgnore": False} for one in modes]})

    async def batch(self, request: Request) -> Response:
        objects = [
            {**one, "actions": {"upload": {"href": f"{request.base_url}large/{one['oid']}"}}}
            for one in (await request.json())["objects"]
        ]
        return JSONResponse({"objects": objects, "transfer": "basic"})

    async def large(self, request: Request) -> Response:
        content = await request.body()
        assert hashlib.sha256(content).hexdigest() == request.path_params["oid"]
        self._large[request.path_params["oid"]] = content
        return Response()

    async def commit(self, request: Request) -> Response:
        files = self._named(request)
        for line in (await request.body()).splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            elif entry["key"] == "lfsFile":
                files[entry["value"]["path"]] = self._large[entry["value"]["oid"]]
        oid, (owner, name) = "0" * 40, (request.path_params[part] for part in ("owner", "name"))
        url = f"{request.base_url}datasets/{owner}/{name}/commit/{oid}"
        return JSONResponse({"commitUrl": url, "commitOid": oid, "success": True})

    async def info(self, request: Request) -> Response:
        name = "/".join(request.path_params[part] for part in ("owner", "name"))
        if name not in self.files:
            return JSONResponse({"error": "not found"}, status_code=404)
        siblings = [{"rfilename": path} for path in self.files[name]]
        private = self.visible[name] == "private"
        return JSONResponse({"id": name, "sha": "0" * 40, "private": private, "siblings": siblings, "tags": []})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    make_private(folder / "private.npz")
    data = pe.ImageNpz(folder / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
    run = pe.evolve(data, Shades(), embedding=Mean(), out=folder / "run", **settings)
    run.export(folder / "out", "huggingface")
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "out", tmp_path / "out"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    with serving(hub) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False)
        yield hub


def test_a_repository_holds_what_the_export_does_and_is_private(out: Path, hub: Hub) -> None:
    address = push(out, "owner/scans")
    assert address.endswith("/datasets/owner/scans")
    files = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    assert "data/train-00000.parquet" in files
    found = {path: hashlib.sha256(content).hexdigest() for path, content in hub.files["owner/scans"].items()}
    assert found == {name: sha256(path) for name, path in files.items()} | {
        ".gitattributes": hashlib.sha256().hexdigest()
    }
    assert hub.visible == {"owner/scans": "private"}
    with pytest.raises(APIError, match=r"owner/scans has files already .*: name a new repository"):
        push(out, "owner/scans")
    push(out, "owner/open", public=True)
    assert hub.visible["owner/open"] == "public"
    del hub.files["owner/open"]["README.md"]
    with pytest.raises(APIError, match="owner/open is public already: say --public"):
        push(out, "owner/open")


def test_nothing_else_goes_there(made: Path, out: Path, hub: Hub) -> None:
    with pytest.raises(RunError, match="run is no export: `pe export RUN"):
        push(made / "run", "owner/scans")
    (out / "notes.txt").write_text("patient 7")
    with pytest.raises(RunError, match=r"is not as it was certified and is not pushed: 'notes\.txt' is there but not"):
        push(out, "owner/scans")
    assert hub.files == {}


def test_what_the_hub_refuses_is_one_sentence(out: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.refuses = "/api/repos/create"
    with pytest.raises(
        APIError, match=r"answered 403 \(.*not yours.*\): see whether the token may write to owner/scans"
    ):
        push(out, "owner/scans")
    hub.refuses = "/api/datasets/owner/scans/commit/main"
    with pytest.raises(APIError, match="answered 403"):
        push(out, "owner/scans")
    hub.refuses = ""
    push(out, "owner/scans")  # nothing of the first attempt is in its way
    with pytest.raises(RecipeError, match="'a/b/c' is no name of a repository: give owner/name"):
        push(out, "a/b/c")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(RecipeError, match="There is no token for the hub: set HF_TOKEN"):
        push(out, "owner/scans")

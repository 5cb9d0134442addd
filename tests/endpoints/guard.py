"""A guard before an endpoint, whose keys expire; and a command that gets the next one."""

from tests.endpoints.faults import respond


class Guarded:
    """An app behind a guard, which lets in who shows one of `accepted`; after `expires` requests
    only the last.
    """

    def __init__(self, app, *accepted, expires=10**9, status=401, words="no"):
        self._app, self._accepted, self._expires = app, accepted, expires
        self._status, self._words = status, words
        self._let_in = 0
        self.came: list[dict[str, str]] = []

    async def __call__(self, scope, receive, send):
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.came.append(headers | {"to": f"{scope['path']}?{scope['query_string'].decode()}"})
        accepted = self._accepted if self._let_in < self._expires else self._accepted[-1:]
        if headers.get("authorization", "") in accepted:
            self._let_in += 1
            await self._app(scope, receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        await respond(
            send,
            self._status,
            f'{{"error": "{self._words}: {headers.get("authorization")}"}}'.encode(),
        )


def printing(path):
    """A command that prints key-1 when it is first run, then key-2, …; it counts in `path`."""
    count = 'n=$(($(cat "$0" 2>/dev/null || echo 0) + 1)); echo $n > "$0"; echo key-$n'
    return ["sh", "-c", count, str(path)]

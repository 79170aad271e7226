"""The order in which a run carries out the requests of a group. Pure."""

from collections.abc import Collection

from tests.model.acts import Change, Erase, Replay, Request, Revert, Undo, request_name


def in_turn(requests: Collection[Request]) -> list[Request]:
    """By name, because all have the same age; but a request comes after those that provide what it needs. A cycle is broken at
    its first name."""
    left = sorted(dict.fromkeys(requests), key=request_name)
    ordered: list[Request] = []
    while left:
        free = [r for r in left if not any(creates(o) & (needs(r) - creates(r)) for o in left)]
        ordered.append((free or left)[0])
        left.remove(ordered[-1])
    return ordered


def creates(request: Request) -> set[tuple[str, str]]:
    made = {("batch", request.by)} if isinstance(request, Replay | Change) else set()
    return {("request", request_name(request)), *made}


def needs(request: Request) -> set[tuple[str, str]]:
    match request:
        case Undo(of):
            return {("request", request_name(of))}
        case Revert(ids) | Erase(ids) | Replay(ids):
            return {("batch", i) for i in ids}
        case _:
            return set()

"""Conditions that a request sets by tags (RFC 9110): a job's tag is its revision."""

from __future__ import annotations

from bellringer.api.problems import Refused


def names(tags: str | None, revision: int) -> bool:
    """Whether a list of tags names a revision, or all by a star."""
    return tags is not None and bool({"*", f'"{revision}"'} & {tag.strip() for tag in tags.split(",")})


def check_match(expected: str | None, revision: int) -> None:
    """If-Match: any of the listed tags, compared strongly, or a star."""
    if expected is None or names(expected, revision):
        return
    raise Refused(
        412,
        "revision_mismatch",
        f"the job is at revision {revision}, which If-Match does not name",
        hint="read it again and repeat the change",
        headers={"ETag": f'"{revision}"'},
    )

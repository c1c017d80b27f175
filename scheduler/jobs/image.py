"""References of container images, as registries and container tools write them: `registry/name:tag@digest`."""

import re

LONGEST_NAME, LONGEST = 255, 500
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = rf"{_PART}(?:/{_PART})*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})"
# For programs that read the schema; people are told by `image_fault` which part is wrong.
PATTERN = rf"^(?:{_HOST}/)?{_PATH}(?::{_TAG})?(?:@{_DIGEST})?$"
EXAMPLE = "registry.example.org/nlp/train:1.4"


def image_fault(text: str) -> str:
    """Which part of a text makes it no reference; empty where it is one."""
    if "://" in text:
        return f"A reference names no protocol; write {text.partition('://')[2] or EXAMPLE}."[:200]
    if any(letter.isspace() for letter in text):
        return "A reference holds no blanks."
    name, at, digest = text.partition("@")
    if at and not re.fullmatch(_DIGEST, digest):
        return "After @ a digest is wanted: sha256: and 64 digits of 0-9 and a-f."
    # A colon before the last slash belongs to the registry's port.
    tagged, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        tagged, colon, tag = name, "", ""
    if colon and not re.fullmatch(_TAG, tag):
        return "After the colon a tag is wanted: up to 128 letters, digits and _ . -, not . or - in front."
    if len(tagged) > LONGEST_NAME:
        return f"The name before tag and digest has at most {LONGEST_NAME} characters."
    if re.fullmatch(PATTERN, text):
        return ""
    host, _, path = tagged.partition("/")
    inner = path if path and re.fullmatch(_HOST, host) else tagged
    if re.fullmatch(_PATH, inner.lower()):
        return f"The name of an image has no capital letters: {inner.lower()}."
    return f"An image is wanted as registry/name:tag or registry/name@sha256:…, such as {EXAMPLE}."

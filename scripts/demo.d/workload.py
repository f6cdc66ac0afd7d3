"""What a serving engine would store: pages of a KV cache of requests over real text.

Everything here follows from the text of this machine and the numbers below, so that two processes
that never talk to each other agree on every key and every byte.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAGE_TOKENS = 64
KV_HEADS = 4
HEAD_DIM = 64
MERGES = 400
TRAINING_WORDS = 1000

SYSTEM_PAGES = 2  # In front of every request.
DOCUMENT_PAGES = 16  # Shared by the requests about one document.
QUESTION_PAGES = 3  # Of each request alone.
WRITER_QUESTIONS = 2  # Requests for each document that the writer serves.
READER_QUESTIONS = 2  # And the reader, with other questions.

_WORD = re.compile(r"\s?\w+|\s?[^\w\s]+|\s+")


def read_text() -> tuple[str, str]:
    """A real text of this machine, and where it came from."""
    folder = Path("/usr/share/common-licenses")
    if folder.is_dir():
        files = sorted(f for f in folder.iterdir() if f.is_file() and not f.is_symlink())
        text = "\n".join(f.read_text(errors="replace") for f in files)
        if len(text) > 100_000:
            return text, f"{len(files)} license texts"
    modules = [argparse, collections, hashlib, np, re]
    docs = [str(getattr(m, name).__doc__) for m in modules for name in sorted(dir(m))]
    return "\n".join(docs), "docstrings of Python and NumPy"


class Tokenizer:
    """A byte-pair encoding, trained on the commonest words of the text itself."""

    def __init__(self, text: str) -> None:
        counts = dict(collections.Counter(_WORD.findall(text)).most_common(TRAINING_WORDS))
        words = {word: list(word.encode()) for word in counts}
        self._ranks: dict[tuple[int, int], int] = {}
        self._known: dict[str, list[int]] = {}
        for token in range(256, 256 + MERGES):
            pairs: collections.Counter[tuple[int, int]] = collections.Counter()
            for word, tokens in words.items():
                for pair in zip(tokens, tokens[1:], strict=False):
                    pairs[pair] += counts[word]
            if not pairs:
                break
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self._ranks[best] = token
            for word, tokens in words.items():
                if best[0] in tokens:
                    words[word] = _merged(tokens, best, token)

    def encode(self, text: str) -> list[int]:
        return [token for word in _WORD.findall(text) for token in self._encode_word(word)]

    def _encode_word(self, word: str) -> list[int]:
        tokens = self._known.get(word)
        if tokens is None:
            tokens = list(word.encode())
            while pairs := [p for p in zip(tokens, tokens[1:], strict=False) if p in self._ranks]:
                best = min(pairs, key=self._ranks.__getitem__)
                tokens = _merged(tokens, best, self._ranks[best])
            self._known[word] = tokens
        return tokens


def _merged(tokens: list[int], pair: tuple[int, int], token: int) -> list[int]:
    out: list[int] = []
    at = 0
    while at < len(tokens):
        if tuple(tokens[at : at + 2]) == pair:
            out.append(token)
            at += 2
        else:
            out.append(tokens[at])
            at += 1
    return out


@dataclass(frozen=True)
class Page:
    """64 tokens of a request and all that came before them: the hash says which."""

    hash: bytes

    @property
    def keys(self) -> tuple[str, str]:
        return f"{self.hash.hex()}_k", f"{self.hash.hex()}_v"


def pages_of(tokens: list[int]) -> list[Page]:
    """A page's key names its tokens and its whole prefix, so equal prefixes share pages."""
    pages = []
    chain = b""
    for start in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
        content = np.array(tokens[start : start + PAGE_TOKENS], np.uint32).tobytes()
        chain = hashlib.blake2b(chain + content, digest_size=16).digest()
        pages.append(Page(chain))
    return pages


class Requests:
    """The requests of the writer and of the reader, in the order in which they come."""

    def __init__(self, documents: int) -> None:
        text, self.source = read_text()
        self._tokens = Tokenizer(text).encode(text)
        self._at = 0
        system = self._take(SYSTEM_PAGES)
        bodies = [system + self._take(DOCUMENT_PAGES) for _ in range(documents)]
        self.token_count = len(self._tokens)
        self.writer = [r for body in bodies for r in self._asked(body, WRITER_QUESTIONS)]
        self.reader = [r for body in bodies for r in self._asked(body, READER_QUESTIONS)]

    def _take(self, pages: int) -> list[int]:
        """The next tokens of the text, from the start again at its end."""
        count = pages * PAGE_TOKENS
        start = self._at % len(self._tokens)
        self._at += count
        part = self._tokens[start : start + count]
        # Where the text repeats itself the page does not: its round is part of it.
        return part + [self._at] * (count - len(part))

    def _asked(self, body: list[int], questions: int) -> Iterator[list[Page]]:
        for _ in range(questions):
            yield pages_of(body + self._take(QUESTION_PAGES))


def value_size(layers: int) -> int:
    return layers * KV_HEADS * PAGE_TOKENS * HEAD_DIM * 2


def fill(page: Page, value: bool, layers: int, out: np.ndarray) -> None:
    """The keys or the values of a page: float16[layers, heads, tokens, dim], as flat bytes."""
    seed = int.from_bytes(page.hash, "little") * 2 + value
    words = np.random.PCG64(seed).random_raw(value_size(layers) // 8)
    # Without the highest bit of the exponent each is a finite number below 2.
    np.bitwise_and(words, np.uint64(0xBFFF_BFFF_BFFF_BFFF), out=out.view(np.uint64))

"""Rules of the code base that a compiler does not check. Needs Python 3.11 and nothing else.

The exceptions are in ratchet.toml. An entry there has to be exact, so it can only shrink.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RATCHET = tomllib.loads((ROOT / "tests/tidy/ratchet.toml").read_text())

# Which layers an include may point to. Siblings do not see each other.
_LOW = {"base", "obs", "runtime"}
_POLICY = {"routing", "allocator", "eviction", "hotcache"}
_NODE = _LOW | _POLICY | {"metadata", "transfer", "proto"}
_TOP = _NODE | {"node", "client"}
LAYERS = {
    "base": set(),
    "runtime": {"base"},
    "obs": {"base", "runtime"},
    **dict.fromkeys(_POLICY, {"base", "obs", "metadata"}),
    "metadata": _LOW | {"proto"},
    "transfer": _LOW | {"proto"},
    "node": _NODE,
    "client": _NODE | {"node"},
    **dict.fromkeys(("daemon", "admin", "bench", "python"), _TOP),
}
ADAPTERS = r"(?:metadata/(?:memory|sqlite|redis|etcd)|transfer/(?:memory|tcp|shm|rdma))"
NAMES_ADAPTERS = ("src/client/open_store", "src/bench/", "src/admin/", "src/daemon/")

# Third-party headers and the folders (or file prefixes) that may include them.
HOMES = {
    r"hiredis/": ["src/metadata/redis/"],
    r"nghttp2/": ["src/metadata/net/"],
    r"sqlite3\.h": ["src/metadata/sqlite/"],
    r"(grpc|grpcpp)/|.*\.grpc\.pb\.h": ["src/daemon/", "src/client/dummy"],
    r"(infiniband|rdma)/": ["src/transfer/rdma/"],
    r"(spdlog|prometheus)/": ["src/obs/"],
    r"pybind11/": ["python/src/"],
    r"CLI/": ["src/daemon/", "src/admin/", "src/bench/"],
    r"xxhash\.h": ["src/base/"],
}

# Names that read the clock, chance or the environment, or start a thread, and where they may.
_RUNTIME = ["src/runtime/"]
BANNED = {
    "thread": (r"\bstd::j?thread\b", _RUNTIME),
    "now": (r"\b\w*(?:clock|Clock)\w*::now\s*\(|\bclock_gettime\b|\bgettimeofday\b", _RUNTIME),
    "sleep": (r"\bsleep_(?:for|until)\b|\b(?:u|nano)sleep\s*\(", _RUNTIME),
    "getenv": (r"\bgetenv\b", ["src/daemon/flags", "src/client/config", "src/admin/flags"]),
    "random": (r"\brandom_device\b|\bs?rand\s*\(|\bgetrandom\b", _RUNTIME),
    "condition": (r"\bstd::condition_variable\b", ["src/runtime/", "src/base/mutex"]),
    "mutex": (r"\bstd::(?:recursive_|shared_|timed_)?mutex\b", ["src/runtime/", "src/base/mutex"]),
    "new": (r"(?<!operator )\bnew\s+[\w:]|\b(?:m|c|re)alloc\s*\(", _RUNTIME),
}
BANNED_IN_TESTS = ("sleep", "now", "random")

FUNCTION_MAX, SOURCE_MAX, HEADER_MAX, TEST_MAX = 70, 500, 250, 600
CPP = (".cc", ".h")


def repo_files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    return sorted(n for n in names if (ROOT / n).is_file())


FILES = repo_files()
TEXT = {n: (ROOT / n).read_text() for n in FILES if n.endswith((*CPP, ".py", ".pyi"))}
OURS = [n for n in FILES if n.endswith(CPP) and n.startswith(("src/", "include/", "python/src/"))]
TESTS = [n for n in FILES if n.endswith(CPP) and n.startswith("tests/")]


def code_of(text: str) -> str:
    """The text with comments, strings and preprocessor lines blanked, line numbers kept."""
    tokens = (
        r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*"
    )

    def blank(match: re.Match[str]) -> str:
        lines = "\n" * match[0].count("\n")
        return '""' + lines if match[0][0] in "\"R'" else lines

    return re.sub(tokens, blank, text, flags=re.DOTALL | re.MULTILINE)


def cpp_functions(text: str) -> list[tuple[str, int]]:
    """(name, lines) of each outermost function body, found by counting braces."""
    code, found, stack, head_start = code_of(text), [], [], 0
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        if match[0] == "{":
            head = code[head_start:at]
            scope = re.search(r"\b(namespace|class|struct|enum|union|extern)\b(?!.*\))", head, re.S)
            called = re.search(r"([\w:~]+|operator\S+)\s*\(", head)
            inside = any(name for name, _ in stack)
            is_function = called and not scope and not inside
            first = head_start + len(head) - len(head.lstrip())
            stack.append((called[1] if is_function else "", code.count("\n", 0, first)))
        elif match[0] == "}" and stack:
            name, line = stack.pop()
            if name:
                found.append((name, code.count("\n", 0, at) - line + 1))
        head_start = at + 1
    return found


def python_functions(text: str) -> list[tuple[str, int]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    return [(node.name, node.end_lineno - node.lineno + 1) for node in nodes]


def includes(name: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', TEXT[name], re.MULTILINE)


def is_test(file: str, name: str) -> bool:
    """Whether a file below tests/ has a test of this name; without one: whether there is a file."""
    text = TEXT.get(f"tests/{file}")
    if text is None or not name:
        return text is not None
    if file.endswith(".py"):
        return re.search(rf"^ *def {name}\(", text, re.MULTILINE) is not None
    suite, _, test = name.partition(".")
    return re.search(rf"^TEST(?:_\w)?\({suite},\s*{test}\)", text, re.MULTILINE) is not None


class Tidy(unittest.TestCase):
    def report(self, problems: list[str]) -> None:
        self.assertFalse(problems, "\n" + "\n".join(problems))

    def test_includes_point_down(self) -> None:
        bad = []
        for name in (n for n in OURS if not n.startswith("include/")):
            own = "python" if name.startswith("python/") else name.split("/")[1]
            if own not in LAYERS:
                bad.append(f"{name}: the layer {own} is not in the table")
                continue
            for header in includes(name):
                layer = "proto" if header.endswith(".pb.h") else header.split("/")[0]
                known = layer in LAYERS or layer == "proto"
                if "/" in header and known and layer != own and layer not in LAYERS[own]:
                    bad.append(f"{name}: {own} must not include {header}")
        self.report(bad)

    def test_only_the_composition_names_adapters(self) -> None:
        bad = []
        for name in (n for n in OURS if not n.startswith(NAMES_ADAPTERS)):
            for header in includes(name):
                match = re.match(ADAPTERS, header)
                if match and not name.startswith(f"src/{match[0]}/"):
                    bad.append(f"{name}: only client/open_store names the adapter {header}")
        self.report(bad)

    def test_third_party_headers_stay_home(self) -> None:
        bad = []
        for name, (pattern, homes) in itertools.product(OURS, HOMES.items()):
            if not name.startswith(tuple(homes)):
                found = [h for h in includes(name) if re.match(pattern, h)]
                bad += [f"{name}: {h} belongs in {', '.join(homes)}" for h in found]
        self.report(bad)

    def test_banned_names(self) -> None:
        allowed, used, bad = RATCHET.get("banned", {}), set(), []
        pure = [n for n in TESTS if n.startswith(("tests/unit/", "tests/sim/"))]
        for name in OURS + pure:
            code = code_of(TEXT[name])
            for rule, (pattern, homes) in BANNED.items():
                if name.startswith(tuple(homes)) or (name in pure and rule not in BANNED_IN_TESTS):
                    continue
                for match in re.finditer(pattern, code):
                    if rule in allowed.get(name, []):
                        used.add((name, rule))
                    else:
                        line = code.count("\n", 0, match.start()) + 1
                        bad.append(f"{name}:{line}: {match[0].strip()} ({rule})")
        listed = {(name, rule) for name, rules in allowed.items() for rule in rules}
        self.report(bad + [f"ratchet.toml: drop banned {entry}" for entry in listed - used])

    def check_ratchet(self, what: str, sizes: dict[str, tuple[int, int]]) -> None:
        allowed, bad = dict(RATCHET.get(what, {})), []
        for key, (size, limit) in sizes.items():
            entry = allowed.pop(key, None)
            if size > limit and entry is None:
                bad.append(f"{key}: {size} lines, at most {limit}")
            elif entry is not None and size <= limit:
                bad.append(f"ratchet.toml: drop {what} {key}, it is within {limit}")
            elif entry is not None and size != entry:
                bad.append(f"{key}: {size} lines, ratchet.toml says {entry}; it may only shrink")
        self.report(bad + [f"ratchet.toml: drop {what} {key}, it is gone" for key in allowed])

    def test_file_sizes(self) -> None:
        def limit(name: str) -> int:
            kind = HEADER_MAX if name.endswith(".h") else SOURCE_MAX
            return TEST_MAX if name.startswith("tests/") else kind

        names = OURS + [n for n in TEXT if n.startswith("tests/")]
        self.check_ratchet("files", {n: (TEXT[n].count("\n"), limit(n)) for n in names})

    def test_function_sizes(self) -> None:
        sizes: dict[str, tuple[int, int]] = {}
        for name, text in TEXT.items():
            find = cpp_functions if name.endswith(CPP) else python_functions
            for function, lines in find(text):
                key = f"{name}:{function}"
                sizes[key] = max(sizes.get(key, (0, 0)), (lines, FUNCTION_MAX))
        self.check_ratchet("functions", sizes)

    def test_own_header_comes_first(self) -> None:
        bad = []
        for name in (n for n in OURS if n.endswith(".cc")):
            inner = name.removeprefix("src/").removeprefix("python/src/")[:-3] + ".h"
            public = "mooncake/" + Path(inner).name
            home = "python/src/" if name.startswith("python/") else "src/"
            own = [
                h for h, at in ((inner, home + inner), (public, "include/" + public)) if at in TEXT
            ]
            if own and (includes(name) or [""])[0] not in own:
                bad.append(f"{name}: its first include must be {own[0]}")
        self.report(bad)

    def test_every_source_is_listed(self) -> None:
        bad = []
        for name in (n for n in OURS + TESTS if n.endswith(".cc")):
            for folder in Path(name).parents:
                lists = [ROOT / folder / f for f in ("CMakeLists.txt", "sources.cmake")]
                text = "\n".join(f.read_text() for f in lists if f.is_file())
                inner = re.escape(str(Path(name).relative_to(folder)))
                if re.search(rf"(?<![\w/.]){inner}(?![\w.])", text):
                    break
            else:
                bad.append(f"{name}: no CMakeLists.txt names it")
        self.report(bad)

    def test_the_tests_of_the_cases_exist(self) -> None:
        page = (ROOT / "docs/cases.md").read_text().splitlines()
        rows = [row for row in page if row.startswith("| ")]
        named = re.findall(r"`([\w/]+\.(?:py|cc))(?:::([\w.]+))?`", "\n".join(rows))
        self.assertGreater(len(named), len(rows) // 2, "the page has another form")
        bad = [
            f"docs/cases.md: no {file}::{name}" for file, name in named if not is_test(file, name)
        ]
        cases = [row.split("|")[1].strip() for row in rows]
        twice = {case for case in cases if "-" in case and cases.count(case) > 1}
        self.report(bad + [f"docs/cases.md: {case} is there twice" for case in twice])

    def test_no_machine_paths(self) -> None:
        pattern = re.compile(r"(?<![\w.}])/(?:work|root|home/\w+)/")
        bad = []
        for name in set(FILES) - {"tests/tidy/tidy_test.py"}:
            text = (ROOT / name).read_bytes().decode(errors="replace")
            bad += [f"{name}: {match[0]}" for match in pattern.finditer(text)]
        self.report(bad)

    def test_scanner_counts_function_lines(self) -> None:
        text = "namespace a {\nclass B {\n  int C() const {\n    if (x) {\n    }\n  }\n};\n}\n"
        self.assertEqual(cpp_functions(text), [("C", 4)])


if __name__ == "__main__":
    unittest.main(verbosity=1)

#!/usr/bin/env python3
"""Bugs that the simulation has to catch: the mutation check.

Each mutant is an edit of the code that ships, in a copy of the tree: the simulation is built
with it and run until a seed fails. One that survives says that the simulation is too weak.

    tests/sim/mutants.py --check           # only that each edit still applies (ctest: tidy.mutants)
    tests/sim/mutants.py                   # all of them: a rebuild of one file and a run each
    tests/sim/mutants.py NAME ...          # some
    tests/sim/mutants.py --seeds 20        # at most so many seeds a scenario; 10 without it

The copy and its build are in build/mutants. Needs Python 3.11 and what the build needs.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build/mutants"
TREE = WORK / "tree"
BUILD = WORK / "build"
RUN_S = 1200  # A mutant may spin for ever.


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    before: str  # Occurs once in the file.
    after: str
    scenarios: str  # Where it has to be caught: a --gtest_filter.


MUTANTS = [
    Mutant(  # A copy that is being moved comes over what was put or removed meanwhile.
        "publish-without-comparing-versions",
        "src/node/route_table.cc",
        "publication.expected && *publication.expected != current;",
        "publication.expected && false;",
        "*NothingIsMissedWhenNodesAreDrained",
    ),
    Mutant(  # A new authority asks no former one what it knows.
        "take-over-without-pulling",
        "src/node/takeover.cc",
        "    sources_ = Sources();\n",
        "    sources_.clear();\n",
        "*FalseAlarms:*NothingIsMissedWhenNodesJoin",
    ),
    Mutant(  # Who is asked for its slots goes on serving them.
        "former-authority-goes-on",
        "src/node/route_slots.cc",
        "      StopServingLocked(info, false);\n"
        "      if (info.state != SlotState::kFormer) continue;",
        "    if (info.state != SlotState::kFormer) continue;",
        "*NothingIsMissedWhenNodesJoin:*FalseAlarms",
    ),
    Mutant(  # A node that others had given up goes on with the slots that it had.
        "lost-lease-ignored",
        "src/node/takeover.cc",
        "    if (!ours || lease_lost || blind) lost.push_back(slot);\n",
        "    if (!ours || (lease_lost && ranks.empty()) || blind) lost.push_back(slot);\n",
        "*PausedNodes:*FalseAlarms",
    ),
    Mutant(  # Extents that were just replaced are written anew while a reply is made from them.
        "reply-without-a-pin",
        "src/node/serve_calls.cc",
        "    reply.payload.push_back(bytes);\n    pins_.push_back(std::move(pin));",
        "    reply.payload.push_back(bytes);",
        "*EvictionPressure:*DelayAndDuplication",
    ),
    Mutant(  # A put that arrives twice is done twice.
        "no-deduplication",
        "src/node/dedup.cc",
        "  if (sequence == 0) return Verdict::kNew;\n  Shard& shard = ShardOf(origin);",
        "  if (sequence != ~uint64_t{0}) return Verdict::kNew;\n  Shard& shard = ShardOf(origin);",
        "*DelayAndDuplication",
    ),
    Mutant(  # Whatever arrives is what was put.
        "checksum-not-verified",
        "src/node/payload.cc",
        "    value.right = base::Checksum(chunk) == value.checksum;\n",
        "    value.right = true;\n",
        "*BytesThatChangeOnTheWay",
    ),
    Mutant(  # The next rank does not know what is on owners that cannot be asked.
        "no-mirror",
        "src/node/outbox.cc",
        "  if (core_ == nullptr) return;\n",
        "  if (core_ != nullptr) return;\n",
        "*SilentOwnersOfADeadAuthority",
    ),
    Mutant(  # It does not hear of what was removed.
        "remove-not-mirrored",
        "src/node/authority.cc",
        "  const ItemCode code = core.routes.Remove(ref, &superseded, revision);\n"
        "  if (code != kItemOk) return code;\n"
        "  core.outbox.Mirror(ref, {.version = superseded.version});\n",
        "  const ItemCode code = core.routes.Remove(ref, &superseded, revision);\n"
        "  if (code != kItemOk) return code;\n",
        "*SilentOwnersOfADeadAuthority",
    ),
    Mutant(  # What is evicted stays in its route.
        "eviction-without-the-authority",
        "src/node/evictor.cc",
        "    freed += EvictRouted(victims, deadline_ms);\n",
        "    freed += deadline_ms != 0 ? RetireAll(victims) : 0;\n",
        "*EvictionPressure",
    ),
    Mutant(  # A put-if-absent replaces what is there.
        "if-absent-ignored",
        "src/node/route_table.cc",
        "  if (publication.if_absent && present) {",
        "  if (publication.if_absent && present && current == 0) {",
        "*FiveNodesWithoutFaults",
    ),
    Mutant(  # A node is done with draining while there is something left on it.
        "drained-too-early",
        "src/node/evacuation.cc",
        "      idle = stuck ? idle + 1 : 0;\n    }\n",
        "      idle = stuck ? idle + 1 : kIdlePassesMax;\n    }\n",
        "*NothingIsMissedWhenNodesAreDrained",
    ),
    Mutant(  # Who knows nothing of what was before it knows that there was nothing.
        "stranger-knows-all",
        "src/node/takeover.cc",
        "{ return era <= oldest_era_; }",
        "{ return era <= oldest_era_ || era > 1; }",
        "*AStrangerIsFirst",
    ),
    Mutant(  # Two who begin the cluster anew take each other for members of the old one.
        "strangers-trust-each-other",
        "src/node/membership_eras.cc",
        "const uint64_t others = NewestEra();\n",
        "const uint64_t others = NewestEra() + members_.size() - 1;\n",
        "*TwoStrangersAreFirst",
    ),
    Mutant(  # Only the authority tells the owners what is published.
        "writer-tells-nobody",
        "src/node/placed_publish.cc",
        "  if (!told && options_.if_absent) return;\n",
        "  if (told || options_.if_absent) return;\n",
        "*AnAuthorityDiesBeforeItsNotices",
    ),
    Mutant(  # Places of a process pass for those of the next one of that name.
        "generations-begin-anew",
        "src/node/extent_store.h",
        "next_generation_.store(FirstGeneration(instance));",
        "next_generation_.store(FirstGeneration(instance & 0));",
        "*ANameComesAgain",
    ),
    Mutant(  # The mirrors of a host are in its other processes.
        "mirrors-on-the-same-host",
        "src/routing/view.cc",
        "if (hosts[ranks[i]] == hosts[ranks[0]]) continue;",
        "if (!hosts.empty()) continue;",
        "*AHostStandsStill",
    ),
]


def check() -> list[str]:
    """What no longer fits: an edit whose place is not there, or there twice."""
    problems = []
    names = [mutant.name for mutant in MUTANTS]
    problems += [f"{name}: the name is taken twice" for name in set(names) if names.count(name) > 1]
    for mutant in MUTANTS:
        count = (ROOT / mutant.file).read_text().count(mutant.before)
        if count != 1:
            problems.append(f"{mutant.name}: {mutant.file} has its place {count} times")
        if mutant.before == mutant.after:
            problems.append(f"{mutant.name}: changes nothing")
    scenarios = (ROOT / "tests/sim/cluster_test.cc").read_text()
    for mutant in MUTANTS:
        for scenario in mutant.scenarios.split(":"):
            if f"TEST(ClusterSim, {scenario.removeprefix('*')})" not in scenarios:
                problems.append(f"{mutant.name}: there is no scenario {scenario}")
    return problems


def copy_tree() -> None:
    """Brings the copy up to date and leaves alone what is equal, so that little is built."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    wanted = set(subprocess.check_output(command, cwd=ROOT, text=True).splitlines())
    for old in TREE.rglob("*"):
        if old.is_file() and str(old.relative_to(TREE)) not in wanted:
            old.unlink()
    for name in wanted:
        source, target = ROOT / name, TREE / name
        if not source.is_file():
            continue
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def build(jobs: int) -> None:
    command = ["cmake", "--build", str(BUILD), "--target", "sim_cluster", "-j", str(jobs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-3000:]}\nthe build failed")


def configure() -> None:
    command = ["cmake", "-S", str(TREE), "-B", str(BUILD), "-G", "Ninja"]
    command += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DMOONCAKE_BUILD_TESTS=ON"]
    command += ["-DMOONCAKE_BUILD_TOOLS=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def simulate(scenarios: str, seeds: int) -> tuple[bool, str]:
    """Whether all was well, and the first thing that was not."""
    command = [str(BUILD / "tests/sim/sim_cluster"), f"--gtest_filter={scenarios}"]
    environment = os.environ | {"MC_SIM_SEEDS": str(seeds)}
    try:
        done = subprocess.run(
            [*command, "--gtest_fail_fast"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
    except subprocess.TimeoutExpired:
        return False, f"it did not end within {RUN_S} s"
    lines = done.stdout.splitlines()
    said = [i for i, line in enumerate(lines) if line.startswith("scenario ")]
    if done.returncode == 0:
        return True, ""
    if not said:  # It broke down: an assertion of the code itself.
        return False, (done.stderr.strip().splitlines() or ["it broke down"])[-1]
    words = lines[said[0]].split(";")[0]
    return False, ": ".join([words, *lines[said[0] + 1 : said[0] + 2]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    problems = check()
    if problems:
        sys.exit("\n".join(problems))
    if options.check:
        return
    chosen = [m for m in MUTANTS if not options.names or m.name in options.names]
    if unknown := set(options.names) - {m.name for m in chosen}:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    copy_tree()
    configure()
    build(options.jobs)
    scenarios = ":".join(sorted({s for m in chosen for s in m.scenarios.split(":")}))
    well, what = simulate(scenarios, options.seeds)
    if not well:
        sys.exit(f"without any mutant: {what}")
    survivors = []
    for mutant in chosen:
        start = time.monotonic()
        file = TREE / mutant.file
        whole = file.read_text()
        file.write_text(whole.replace(mutant.before, mutant.after))
        try:
            build(options.jobs)
            well, what = simulate(mutant.scenarios, options.seeds)
        finally:
            file.write_text(whole)
        took = time.monotonic() - start
        print(f"{mutant.name}: {'SURVIVED' if well else 'caught'} ({took:.0f} s) {what}"[:240])
        sys.stdout.flush()
        if well:
            survivors.append(mutant.name)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    if survivors:
        sys.exit(f"survived: {', '.join(survivors)}")


if __name__ == "__main__":
    main()

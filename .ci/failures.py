"""Checks docs/failures.md against the sources: each test that it names exists in the binary that it names, and so do each event,
each metric, each field of the spec and each flag. Run by `./dev ci`."""
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path("docs/failures.md")
CASE = re.compile(r"^\s*(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)\s*\)", re.M)
NAMED = re.compile(r"`(\w+): (\w+)\.(\w+)`")
PREFIXES = ("rerun_",)  # kinds of events that are put together from two parts


def sources(*patterns):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *patterns], capture_output=True, text=True, check=True)
    return [pathlib.Path(name) for name in listed.stdout.split() if pathlib.Path(name).exists()]


def cases_of_binaries():
    """binary -> "Suite.Case" of the files that its muster_test() lists."""
    binaries = {}
    for path in sources("tests/**/CMakeLists.txt"):
        for name, arguments in re.findall(r"muster_\w*test\((\w+)([^)]*)\)", path.read_text()):
            files = [path.parent / word for word in arguments.split() if word.endswith(".cc")]
            binaries[name] = {".".join(case) for file in files if file.exists() for case in CASE.findall(file.read_text())}
    return binaries


def main():
    page = PAGE.read_text()
    problems, cases = [], cases_of_binaries()
    named = NAMED.findall(page)
    for binary, suite, case in named:
        if binary not in cases:
            problems.append(f"no test binary {binary}")
        elif f"{suite}.{case}" not in cases[binary]:
            problems.append(f"{binary} has no case {suite}.{case}")
    if not named:
        problems.append("no test is named: has the form of the table changed?")
    code = "\n".join(path.read_text() for folder in ("coordinator", "worker", "common", "cli") for path in sources(f"{folder}/*.cc", f"{folder}/*.h"))
    spec = pathlib.Path("docs/spec.md").read_text()
    events = flags = fields = 0
    for row in page.splitlines():
        columns = row.split(" | ")
        if len(columns) != 5 or columns[0].startswith("| what happens"):
            continue
        for name in re.findall(r"`([a-z_]+)(?:\{[^`]*)?`", columns[3]):
            events += 1
            ending = next((name[len(prefix):] for prefix in PREFIXES if name.startswith(prefix)), name)
            state = name.upper()  # a state's event is its name in small letters
            if not any(f'"{text}"' in code for text in (name, ending, state)):
                problems.append(f"nothing in the sources is called {name} (column of events and metrics)")
    for word in re.findall(r"`([^`]+)`", page):
        flag = re.match(r"--[a-z-]+", word)
        field = re.match(r"(recovery|rerun|resources|checkpoint|training)\.(\w+)", word)
        if flag:
            flags += 1
            if f'"{flag[0]}"' not in code:
                problems.append(f"no program has the flag {flag[0]}")
        if field:
            fields += 1
            section = re.search(rf"^## {field[1]}$(.*?)(?=^## |\Z)", spec, re.M | re.S)
            row = re.search(rf"^\| `{field[2]}` \|.*$", section[1] if section else "", re.M)
            default = re.search(r"=(\S+)", word)
            if not row:
                problems.append(f"docs/spec.md has no field {field[0]}")
            elif default and not re.search(rf'\| `"?{re.escape(default[1])}"?` \|', row[0]):
                problems.append(f"{word}: docs/spec.md has another default")
    for problem in problems:
        print(f"{PAGE}: {problem}")
    print(f"failures: {len(named)} tests, {events} events and metrics, {fields} fields, {flags} flags, {len(problems)} wrong")
    return 1 if problems else 0


sys.exit(main())

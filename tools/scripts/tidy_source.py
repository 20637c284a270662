#!/usr/bin/env python3
"""House rules that no compiler checks (design: house rules; each message names its rule).

    tidy_source.py [ROOT]      prints FILE:LINE: RULE: text; exit 1 when there is any

Standard library only, so that it runs on a bare machine.
"""
import os
import re
import sys

LAYERS = ["formats", "runtime", "loader", "tools"]  # each may include itself and those before it
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
HEADER_LINES_MAX = 250
COLUMNS_MAX = 100
PARAMETERS_MAX = 6

# Banned anywhere in C, with what to use.
BANNED = {
    "strcpy": "snprintf or memcpy", "strcat": "struct k3_text", "sprintf": "snprintf",
    "vsprintf": "vsnprintf", "atoi": "strict digits", "atol": "strict digits",
    "alloca": "a fixed array or malloc", "gets": "fgets", "strtok": "strcspn or strchr",
}
# Banned in libraries: they return errors and leave the process alone.
BANNED_IN_LIBRARY = {
    "printf", "fprintf", "vprintf", "vfprintf", "puts", "fputs", "putchar", "perror",
    "exit", "_exit", "abort", "signal", "sigaction",
}
ABORT_ALLOWED = "k3: abort allowed"  # a comment on the same line or the one above
BANNED_WORDS = {"handle", "process", "manage", "util", "helper"}
HEAD_WORDS = ["Purpose:", "Owns:", "Threads:", "Errors:", "Invariant"]
LEFTOVER = re.compile(r"\b(FIX" r"ME|TO" r"DO|X" r"XX)\b")
# Third-party headers, each behind one .c file.
THIRD_PARTY = [
    (re.compile(r"^cjson/|^cJSON\.h$"), "cJSON", "formats"),
    (re.compile(r"^zstd"), "zstd", "formats"),
    (re.compile(r"^openssl/"), "libcrypto", None),
    (re.compile(r"^liburing"), "liburing", "runtime"),
    (re.compile(r"^curl/"), "libcurl", None),
    (re.compile(r"^mpi\.h$"), "MPI", None),
]

problems = []


def problem(path, line, rule, text):
    problems.append(f"{path}:{line}: {rule}: {text}")


def blank(text):
    """Comments, strings and character constants turned into blanks; lines stay where they are."""
    def keep_lines(match):
        found = match.group(0)
        if found[0] in "\"'":
            return found[0] + " " * (len(found) - 2) + found[0]
        return re.sub(r"[^\n]", " ", found)
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, keep_lines, text, flags=re.S)


def without_preprocessor(code):
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
                  lambda m: re.sub(r"[^\n]", " ", m.group(0)), code, flags=re.M)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def layer_of(path):
    first = path.split("/")[0]
    return first if first in LAYERS else None


def split_top_commas(text):
    depth, parts, begin = 0, [], 0
    for i, c in enumerate(text):
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    return parts + [text[begin:]]


def top_level(code):
    """(begin, end, body_begin, body_end) of each declaration; body_* -1 where there is none."""
    begin, i, n = 0, 0, len(code)
    while i < n:
        if code[i] == ";":
            yield begin, i, -1, -1
            begin = i + 1
        elif code[i] == "{":
            start, depth = i, 0
            while i < n:
                depth += (code[i] == "{") - (code[i] == "}")
                if depth == 0:
                    break
                i += 1
            head = code[begin:start]
            if re.search(r"\)\s*$", head) and "=" not in head:
                yield begin, start, start, i
                begin = i + 1
            # else a struct, an enum or a table: its declaration ends with ';'
        i += 1


def declarator(head):
    """Name and parameter texts of a function declaration; None when it is none."""
    head = re.sub(r"__attribute__\s*\(\(.*?\)\)|K3_PRINTF\s*\([^)]*\)", "", head, flags=re.S)
    if "{" in head or "=" in head:
        return None
    match = re.search(r"\b([A-Za-z_]\w*)\s*\(", head)
    if not match or match.group(1) in ("_Static_assert", "__extension__", "typeof"):
        return None
    depth, i = 0, match.end() - 1
    for i in range(match.end() - 1, len(head)):
        depth += (head[i] == "(") - (head[i] == ")")
        if depth == 0:
            break
    return match.group(1), split_top_commas(head[match.end():i])


def check_function(path, code, begin, head, body):
    found = declarator(code[begin:head])
    if not found or code[begin:head].lstrip().startswith("typedef"):
        return
    name, parameters = found
    first = begin + len(code[begin:head]) - len(code[begin:head].lstrip())
    line = line_of(code, first)
    if len(parameters) > PARAMETERS_MAX:
        problem(path, line, "parameters", f"{name} has {len(parameters)}; {PARAMETERS_MAX} at "
                "most, then an options struct")
    for word in name.split("_"):
        if word in BANNED_WORDS:
            problem(path, line, "name", f"{name}: '{word}' says nothing; name what it does")
    if body >= 0:
        lines = line_of(code, body) - line + 1
        if lines > FUNCTION_LINES_MAX:
            problem(path, line, "function",
                    f"{name} has {lines} lines; {FUNCTION_LINES_MAX} at most")


ASSIGNED = re.compile(r"\brc\s*=[^=]")


def check_gotos(path, code):
    """Each `goto out` leaves with a code that was set for it, on the statement before."""
    for match in re.finditer(r"\bgoto\s+out\s*;", code):
        # Statements between here and the brace that opens this block, nearest last.
        depth, i = 0, match.start() - 1
        while i >= 0 and not (depth == 0 and code[i] == "{"):
            depth += (code[i] == "}") - (code[i] == "{")
            i -= 1
        block = code[i + 1:match.start()].rstrip()
        statements = [s for s in re.split(r"[;{}]", block) if s.strip()]
        own = statements[-1] if statements and block[-1] not in ";}" else ""
        before = statements[:-1] if own else statements
        if ASSIGNED.search(own) or re.search(r"\brc\b", own):
            continue
        if own:
            good = before and ASSIGNED.search(before[-1])
        else:
            head = re.split(r"[;{}]", code[:max(i, 0)])[-1]
            good = re.search(r"\brc\b", head) or any(ASSIGNED.search(s) for s in before)
        if not good:
            problem(path, line_of(code, match.start()), "goto",
                    "goto out without an assignment to rc just before it")


def check_calls(path, text, code):
    layer = layer_of(path)
    lines = text.split("\n")
    for match in re.finditer(r"\b([A-Za-z_]\w*)\s*\(", code):
        name, line = match.group(1), line_of(code, match.start())
        if name in BANNED:
            problem(path, line, "banned", f"{name}; use {BANNED[name]}")
        elif name in ("getenv", "secure_getenv") and layer and layer != "tools":
            problem(path, line, "banned", f"{name} outside tools/; pass an option")
        elif name in BANNED_IN_LIBRARY and layer and layer != "tools":
            near = lines[max(0, line - 2):line]
            if name == "abort" and any(ABORT_ALLOWED in text for text in near):
                continue
            problem(path, line, "banned", f"{name} in {layer}/; a library returns its errors")


def check_includes(path, text, homes, users):
    layer = layer_of(path)
    if not layer:
        return
    allowed = LAYERS[:LAYERS.index(layer) + 1]
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', text, re.M):
        kind, name, line = match.group(1), match.group(2), line_of(text, match.start())
        third = next((t for t in THIRD_PARTY if t[0].search(name)), None)
        if third:
            users.setdefault(third[1], set()).add(path)
            if path.endswith(".h"):
                problem(path, line, "third-party",
                        f"{name} in a header; hide it behind one .c file")
            elif third[2] and layer != third[2]:
                problem(path, line, "third-party", f"{name} belongs to {third[2]}/")
        elif kind == '"' and homes.get(name) not in allowed:
            problem(path, line, "layer", f"{layer} must not include {name} "
                    f"({homes.get(name) or 'not in a layer'})")


def check_text(path, text):
    lines = text.rstrip("\n").split("\n")
    is_header = path.endswith(".h")
    limit = HEADER_LINES_MAX if is_header else FILE_LINES_MAX
    if len(lines) > limit:
        problem(path, limit + 1, "header" if is_header else "file",
                f"{len(lines)} lines; {limit} at most")
    for number, line in enumerate(lines, 1):
        if len(line.encode()) > COLUMNS_MAX and len(line) > COLUMNS_MAX:
            problem(path, number, "line", f"{len(line)} columns; {COLUMNS_MAX} at most")


def check_c(path, text, homes, users):
    check_text(path, text)
    code = blank(text)
    check_includes(path, text, homes, users)
    check_calls(path, text, code)
    plain = without_preprocessor(code)
    for begin, head, _, body in top_level(plain):
        check_function(path, plain, begin, head, body)
    check_gotos(path, plain)
    if path.endswith(".c") and layer_of(path):
        head = text[:text.find("*/")] if text.startswith("/*") else ""
        missing = [word for word in HEAD_WORDS if word not in head]
        if missing:
            problem(path, 1, "head", "the file head lacks " + " ".join(missing))


def source_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in ("build", "dist", ".git", "__pycache__"))
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    files = list(source_files(root))
    homes = {os.path.basename(f): layer_of(f) for f in files
             if f.endswith((".h", ".cuh")) and layer_of(f)}
    seen, users = {}, {}
    for path in files:
        suffix = os.path.splitext(path)[1]
        if suffix in (".c", ".h", ".cu", ".cuh", ".py", ".sh"):
            base = os.path.basename(path)
            if base in seen:
                problem(path, 1, "unique", f"there is {seen[base]} too; file names are unique")
            seen[base] = path
        if suffix not in (".c", ".h", ".cu", ".cuh", ".py", ".sh", ".md") and path != "Makefile":
            continue
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            text = f.read()
        if suffix in (".c", ".h", ".cu", ".cuh"):
            check_c(path, text, homes, users)
        for match in LEFTOVER.finditer(text):
            problem(path, line_of(text, match.start()), "leftover", match.group(0))
    for library, paths in users.items():
        sources = sorted(p for p in paths if p.endswith(".c"))
        for path in sources[1:]:
            problem(path, 1, "third-party",
                    f"{library} is used by {sources[0]} already; one .c file each")
    for line in problems:
        print(line)
    return 1 if problems else 0


sys.exit(main())

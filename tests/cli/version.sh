# Version and features; what depends on the machine that built it is cut out.
"$K3" --version | sed -n 's/^k3-shard [0-9.]*$/version/p; s/^\(build\|libraries\): .*/\1/p; /^io:/p; /^devices:/p'
"$K3" version | cmp - <("$K3" --version) || echo "version and --version differ"
"$K3" version --json | python3 -c '
import json, os, sys
found = json.load(sys.stdin)
want = open(os.environ["K3_SOURCE"] + "/VERSION").read().strip()
assert found["version"] == want, (found, want)'

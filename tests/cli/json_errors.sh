# With --json an error is also one object on stdout, wherever --json stands.
"$K3" plan --json
echo "exit $?"
"$K3" --json plan /ckpt --tp "a\"b"
echo "exit $?"
"$K3" plan /ckpt --tp x -- --json # behind -- it is an argument
echo "exit $?"
"$K3" plan --json 2>/dev/null | python3 -c '
import json, sys
error = json.load(sys.stdin)
assert sorted(error) == ["code", "error", "file", "message", "offset"], error'

# A result that cannot be written is a failure; so is a closed pipe or stream.
"$K3" --help >/dev/full
echo "full: exit $?"
"$K3" --help >&-
echo "closed: exit $?"
(sleep 0.2; "$K3" --help; echo "pipe: exit $?" >&2) | true

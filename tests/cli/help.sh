# The help of the tool, in each way of asking.
"$K3" --help
"$K3" help | cmp - <("$K3" -h) || echo "help and -h differ"

# The help of convert.
"$K3" convert --help

# The help of load.
"$K3" load --help

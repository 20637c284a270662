# The help of inspect.
"$K3" inspect --help

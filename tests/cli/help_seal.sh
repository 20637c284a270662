# The help of seal.
"$K3" seal --help

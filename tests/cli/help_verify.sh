# The help of verify.
"$K3" verify --help

# The help of export.
"$K3" export --help

# The help of plan.
"$K3" plan --help

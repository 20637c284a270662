# The help of bench and of doctor.
"$K3" help bench
"$K3" help doctor

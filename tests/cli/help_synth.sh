# The help of synth.
"$K3" synth --help

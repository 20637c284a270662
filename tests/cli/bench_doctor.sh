# What bench and doctor say where nothing of it depends on the machine.
"$K3" bench nowhere --quiet
echo "exit $?"
mkdir empty
"$K3" bench empty --quiet
echo "exit $?"
LD_LIBRARY_PATH="$K3_BUILD/fake_bad" "$K3" doctor nowhere | grep -E '^missing +(directory|cuda|hip) '
echo "exit ${PIPESTATUS[0]}"
"$K3" doctor empty extra
echo "exit $?"

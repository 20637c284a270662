# make demo into a folder that is kept: the second time it says what to do.
export K3_DEMO_DIR=kept
for time in first second; do
    bash "$K3_SOURCE/tools/scripts/demo.sh" 2>told | tail -n 1
    echo "$time: exit ${PIPESTATUS[0]}"
    grep '^demo:' told
done
true

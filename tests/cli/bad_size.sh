# Sizes: the unit is spelled, the value is exact and fits.
for size in 195G 195g 1.5.0GiB GiB -1GiB 1e9 0x10 '1  GiB' 1XB 0.3KiB 18446744073709551616 \
            16777216TiB 1.0000000000001TB .5GiB 1.GiB ' 1GiB'; do
    "$K3" plan /ckpt --budget "$size"
    rc=$?
    [ $rc = 2 ] || echo "exit $rc for '$size'"
done

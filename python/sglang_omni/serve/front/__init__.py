"""What every request passes before its route and after it: ids, keys, origins, limits, admission, errors."""

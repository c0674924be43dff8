"""What the quantizations of float codes share: the ways to store a matrix, and the formats of `quantization_config`
that say which layer is stored which way. No plugin itself."""

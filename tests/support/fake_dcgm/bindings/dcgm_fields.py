"""Field types of DCGM's ``dcgm_fields``."""

DCGM_FT_DOUBLE = "d"
DCGM_FT_INT64 = "i"
DCGM_FE_GPU = 1

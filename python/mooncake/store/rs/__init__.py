"""The implementation behind :mod:`mooncake.store`, under the name that older code imports."""

// Values whose every byte follows from a key, a version and its place, so that a reader can tell
// right bytes from any others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "mooncake/bytes.h"

namespace mooncake::bench {

std::string KeyName(uint64_t run, uint64_t index);

void FillValue(uint64_t seed, MutableBytes value);
// The offset of the first wrong byte; value.size() when all are right.
size_t FirstWrongByte(uint64_t seed, ConstBytes value);

}  // namespace mooncake::bench

// Protobuf messages with changed fields: what changes of their bytes would hardly ever make.
#pragma once

#include <google/protobuf/message.h>

#include "fuzz/mutate.h"

namespace mooncake::fuzz {

// What Protobuf reserves, before it finds that the input ends, for a text that claims to be as
// long.
inline constexpr uint64_t kReservedByParse = 50'000'000;
// An empty message within one is two bytes, and an object of some hundred.
inline constexpr uint64_t kMessagePerByteMax = 600;

// Makes some fields of the message, or of a message within it, extreme, longer, shorter or absent.
void ChangeFields(google::protobuf::Message& message, Random& random);

}  // namespace mooncake::fuzz

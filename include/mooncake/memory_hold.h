// MemoryHold: keeps registered memory registered while a call uses addresses in it.
#pragma once

#include "mooncake/store.h"

namespace mooncake {

// Keeps registered memory registered. Who was handed an address takes a hold, asks IsRegistered,
// and gives the hold up when the call with that memory has returned; a registration that was seen
// cannot end in between. Costs two atomic operations. Not for long: UnregisterBuffer and Close
// wait for it.
class MemoryHold {
 public:
  explicit MemoryHold(Store& store) : store_(store), hold_(store.BeginHold()) {}
  ~MemoryHold() { store_.EndHold(hold_); }
  MemoryHold(const MemoryHold&) = delete;
  MemoryHold& operator=(const MemoryHold&) = delete;

 private:
  Store& store_;
  const int hold_;
};

}  // namespace mooncake

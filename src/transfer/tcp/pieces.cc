#include "transfer/tcp/pieces.h"

#include <memory>

namespace mooncake::transfer {

char* DropScratch() {
  // Thread-local: the bytes are never read, but two threads must not write them at once.
  static thread_local std::unique_ptr<char[]> scratch;
  if (!scratch) scratch = std::make_unique_for_overwrite<char[]>(kScratchSize);
  return scratch.get();
}

}  // namespace mooncake::transfer

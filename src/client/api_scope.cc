#include <utility>

#include "mooncake/observability.h"

namespace mooncake {

ApiScope::State& ApiScope::OfThread() {
  static thread_local constinit State state;
  return state;
}

ApiScope::ApiScope(std::string_view name)
    : state_(OfThread()), outer_(std::exchange(state_, State{name, 0})) {}

}  // namespace mooncake

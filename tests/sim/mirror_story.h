// MirrorStory: values that change while those who know them best stand still.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/sim_cluster.h"

namespace mooncake::testing {

// Each key is left alone, removed or overwritten (by another owner) after it was written. For sim
// threads only.
class MirrorStory {
 public:
  // Of keys whose ranks, the names of their authorities, `fits` takes. `owner` and `other` are
  // live, with a view that has all.
  using Fits = std::function<bool(const std::vector<std::string>& ranks)>;
  MirrorStory(SimCluster& cluster, SimNode& owner, SimNode& other, const Fits& fits);

  // Puts the values on the owner.
  void Write();
  // The other one changes the keys.
  void Change();
  // The live nodes read what the last change of each key says.
  void Check();

 private:
  enum class Fate : uint8_t { kKept, kRemoved, kOverwritten };
  struct Key {
    std::string name;
    Fate fate;
  };
  void Expect(const Status& status, const std::string& what);

  SimCluster& cluster_;
  SimNode& owner_;
  SimNode& other_;
  std::vector<Key> keys_;
};

}  // namespace mooncake::testing

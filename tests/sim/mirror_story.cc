#include "mirror_story.h"

#include <fmt/format.h>

namespace mooncake::testing {

namespace {

constexpr size_t kKeys = 18;
constexpr int kNamesMax = 2'000;
constexpr uint64_t kSizeMax = 200;
const ReplicateConfig kOnTheWriter{.replica_num = 1, .prefer_local = true};

// The value before and after the change.
std::string OldValue(const std::string& key) { return PutValueOf(key, 1, kSizeMax); }
std::string NewValue(const std::string& key) { return PutValueOf(key, 2, kSizeMax); }

}  // namespace

MirrorStory::MirrorStory(SimCluster& cluster, SimNode& owner, SimNode& other, const Fits& fits)
    : cluster_(cluster), owner_(owner), other_(other) {
  for (int i = 0; i < kNamesMax && keys_.size() < kKeys; ++i) {
    const std::string name = fmt::format("told-{}", i);
    if (!fits(other_.RanksOf(name))) continue;
    keys_.push_back({name, static_cast<Fate>(keys_.size() % 3)});
  }
  if (keys_.size() < kKeys) cluster_.Problem("too few keys of the wanted ranks");
}

void MirrorStory::Expect(const Status& status, const std::string& what) {
  if (!status.ok()) cluster_.Problem(fmt::format("{}: {}", what, status.error().ToString()));
}

void MirrorStory::Write() {
  for (const Key& key : keys_) {
    Expect(owner_.Put({key.name}, {OldValue(key.name)}, false, &kOnTheWriter)[0],
           "put " + key.name);
  }
}

void MirrorStory::Change() {
  for (const Key& key : keys_) {
    if (key.fate == Fate::kRemoved) {
      const Status removed = other_.Remove({key.name})[0];
      // Who answers may not know of it. It is not to come back either.
      if (removed.code() != ErrorCode::kNotFound) Expect(removed, "remove " + key.name);
    }
    if (key.fate != Fate::kOverwritten) continue;
    Expect(other_.Put({key.name}, {NewValue(key.name)}, false, &kOnTheWriter)[0],
           "overwrite " + key.name);
  }
}

void MirrorStory::Check() {
  for (SimNode* reader : cluster_.Live()) {
    for (const Key& key : keys_) {
      const auto got = reader->Get({key.name})[0];
      const std::string value = got.ok() ? *got : std::string();
      if (!got.ok() && got.code() != ErrorCode::kNotFound) {
        cluster_.Problem(
            fmt::format("{} at {}: {}", key.name, reader->name(), got.error().ToString()));
        continue;
      }
      const std::string wanted = key.fate == Fate::kKept          ? OldValue(key.name)
                                 : key.fate == Fate::kOverwritten ? NewValue(key.name)
                                                                  : std::string();
      if (value == wanted) continue;
      cluster_.Problem(fmt::format("{} at {}: fate {}, {}", key.name, reader->name(),
                                   static_cast<int>(key.fate),
                                   value.empty()                 ? "missed"
                                   : value == OldValue(key.name) ? "the old value"
                                                                 : "wrong"));
    }
  }
}

}  // namespace mooncake::testing

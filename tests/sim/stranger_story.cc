#include "stranger_story.h"

#include <fmt/format.h>

namespace mooncake::testing {

namespace {
constexpr int kKeys = 20;
constexpr int kNamesMax = 2'000;
constexpr uint64_t kSizeMax = 200;
}  // namespace

void StrangerStory::Put(SimNode& writer, const std::string& key, uint64_t version, bool if_absent,
                        const ReplicateConfig* replicate) {
  const std::string value = PutValueOf(key, version, kSizeMax);
  const Status status = writer.Put({key}, {value}, if_absent, replicate)[0];
  if (!status.ok()) {
    cluster_.Problem(fmt::format("put {}: {}", key, status.error().ToString()));
    return;
  }
  wanted_[key] = value;
}

void StrangerStory::Write() {
  const ReplicateConfig own{.replica_num = 1, .prefer_local = true};
  for (SimNode* node : cluster_.Live()) {
    for (int i = 0; i < kKeys; ++i) {
      Put(*node, fmt::format("{}-{}", node->stable_id(), i), 1, false, i % 2 == 0 ? &own : nullptr);
    }
  }
}

void StrangerStory::LetBack() {
  cluster_.AnyLive()->metadata().SetFault(MetadataFault::kNone);
  cluster_.SleepMs(cluster_.Pick(2'500));
}

void StrangerStory::Join(int count) { stranger_ = cluster_.JoinAhead(count); }

void StrangerStory::WriteThere() {
  std::vector<std::string> old;
  for (const auto& [key, value] : wanted_) old.push_back(key);
  if (stranger_ == nullptr) return;
  for (int i = 0; i < kKeys; ++i) Put(*stranger_, fmt::format("new-{}", i), 1, false, nullptr);
  for (size_t i = 0; i < old.size(); i += 5) Put(*stranger_, old[i], 2, false, nullptr);
}

void StrangerStory::WriteAndKill() {
  SimNode& authority = *cluster_.Live()[0];
  SimNode& writer = *cluster_.Live()[1];
  SimNode& other = *cluster_.Live()[2];
  const ReplicateConfig own{.replica_num = 1, .prefer_local = true};
  const ReplicateConfig elsewhere{.replica_num = 1,
                                  .preferred_segments = {other.stable_id() + "-segment"}};
  std::vector<std::string> keys;
  for (int i = 0; i < kNamesMax && keys.size() < kKeys; ++i) {
    const std::string name = fmt::format("told-{}", i);
    if (writer.RanksOf(name)[0] == authority.name()) keys.push_back(name);
  }
  for (const ReplicateConfig* where : {&own, &elsewhere}) {
    const std::vector<std::string> half(keys.begin() + (where == &own ? 0 : kKeys / 2),
                                        keys.begin() + (where == &own ? kKeys / 2 : kKeys));
    std::vector<std::string> values;
    for (const std::string& key : half) values.push_back(PutValueOf(key, 1, kSizeMax));
    const std::vector<Status> statuses = writer.Put(half, values, true, where);
    for (size_t i = 0; i < half.size(); ++i) {
      if (!statuses[i].ok()) cluster_.Problem("put " + half[i]);
      wanted_[half[i]] = values[i];
    }
  }
  cluster_.Kill(authority);
}

void StrangerStory::ComeAgain() {
  SimNode& victim = *cluster_.Live()[0];
  SimNode& writer = *cluster_.Live()[1];
  const std::string name = victim.name();
  const ReplicateConfig own{.replica_num = 1, .prefer_local = true};
  std::vector<std::string> keys;
  for (int i = 0; i < kKeys; ++i) keys.push_back(fmt::format("dead-{}", i));
  for (const std::string& key : keys) Put(victim, key, 1, false, &own);
  cluster_.SleepMs(500);
  cluster_.Kill(victim);
  writer.Remove(keys);  // The victim is to be told, as soon as it is heard of again.
  cluster_.WipeMetadata();
  SimNode* const again = cluster_.Join(victim.stable_id());
  if (again == nullptr || again->name() != name) return cluster_.Problem("another name");
  for (int i = 0; i < kKeys; ++i) Put(*again, fmt::format("in-its-place-{}", i), 1, false, &own);
  cluster_.SleepMs(5'000);
  for (const std::string& key : keys) {
    const auto exists = writer.Exist({key})[0];
    if (!exists.ok() || *exists == Existence::kPresent) cluster_.Problem(key + " is there");
    Put(writer, key, 2, true, &own);
  }
}

void StrangerStory::Check() {
  for (SimNode* reader : cluster_.Live()) {
    for (const auto& [key, value] : wanted_) {
      const auto got = reader->Get({key})[0];
      if (got.ok() && *got == value) continue;
      cluster_.Problem(fmt::format("{} at {}: {}", key, reader->name(),
                                   got.ok() ? "another value" : got.error().ToString()));
    }
  }
}

}  // namespace mooncake::testing

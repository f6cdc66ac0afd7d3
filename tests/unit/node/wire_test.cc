#include "node/wire.h"

#include <gtest/gtest.h>

#include <random>

#include "mooncake/store.h"

namespace mooncake::node {
namespace {

v1::Keys KeysOf(const std::vector<std::string>& keys) {
  v1::Keys message;
  for (const std::string& key : keys) AddKey(key, &message);
  return message;
}

TEST(ReadKeys, ReturnsWhatWasAdded) {
  const std::vector<std::string> keys = {"a", std::string("\0b", 2), std::string(kKeySizeMax, 'x')};
  const v1::Keys message = KeysOf(keys);
  std::vector<std::string_view> read;
  ASSERT_TRUE(ReadKeys(message, &read));
  EXPECT_EQ(std::vector<std::string>(read.begin(), read.end()), keys);
}

TEST(ReadKeys, RefusesSizesThatDoNotAddUp) {
  std::vector<std::string_view> read;
  v1::Keys message = KeysOf({"abc", "de"});
  message.set_sizes(1, 3);
  EXPECT_FALSE(ReadKeys(message, &read));
  message.set_sizes(1, 1);
  EXPECT_FALSE(ReadKeys(message, &read));
  message.set_sizes(1, ~0u);
  EXPECT_FALSE(ReadKeys(message, &read));
  message.clear_sizes();
  EXPECT_FALSE(ReadKeys(message, &read));
}

TEST(ReadKeys, RefusesEmptyAndOverlongKeysAndTooMany) {
  std::vector<std::string_view> read;
  EXPECT_FALSE(ReadKeys(KeysOf({"a", ""}), &read));
  EXPECT_FALSE(ReadKeys(KeysOf({std::string(kKeySizeMax + 1, 'x')}), &read));
  EXPECT_TRUE(ReadKeys(KeysOf(std::vector<std::string>(kItemsPerMessageMax, "k")), &read));
  EXPECT_FALSE(ReadKeys(KeysOf(std::vector<std::string>(kItemsPerMessageMax + 1, "k")), &read));
}

TEST(ReadRoute, ReturnsWhatWasWritten) {
  NameTable ours("self:1");
  NameTable theirs("peer:4");
  const Place remote{*ours.IndexOf("peer:4"), 1, 64, 9};
  const Route route{7, 100, 5, true, true, {Place{kSelf, 0, 128, 3}, remote}};
  v1::Route wire;
  WriteRoute("key", route, ours, &wire);
  const auto same = ReadRoute(wire, ours);
  ASSERT_TRUE(same);
  EXPECT_EQ(same->replicas, route.replicas);
  EXPECT_EQ(same->version, 7u);
  EXPECT_TRUE(same->has_checksum && same->soft_pin);
  const auto seen_there = ReadRoute(wire, theirs);
  ASSERT_TRUE(seen_there);
  EXPECT_EQ(seen_there->replicas[1].owner, kSelf);
  EXPECT_EQ(theirs.NameOf(seen_there->replicas[0].owner), "self:1");
}

TEST(ReadRoute, RefusesBadOwnersAndTooManyReplicas) {
  NameTable names("self:1");
  for (const char* owner : {"", "nameless", ":1", "a:b"}) {
    v1::Route wire;
    wire.add_replicas()->set_owner(owner);
    EXPECT_FALSE(ReadRoute(wire, names)) << owner;
  }
  v1::Route wire;
  for (int i = 0; i < 65; ++i) wire.add_replicas()->set_owner("a:1");
  EXPECT_FALSE(ReadRoute(wire, names));
}

TEST(ReadRoute, RefusesVersionsAboveWhichThereIsNone) {
  NameTable names("self:1");
  v1::Route wire;
  wire.set_version(kVersionMax);
  EXPECT_TRUE(ReadRoute(wire, names));
  wire.set_version(kVersionMax + 1);
  EXPECT_FALSE(ReadRoute(wire, names));
}

TEST(ReadKeyedRoute, TakesItsScopeFromTheColumn) {
  NameTable names("self:1");
  ScopeTable ours, theirs;
  theirs.Intern({"someone", "else", "before"});
  google::protobuf::RepeatedPtrField<v1::Scope> column;
  ScopeColumn scopes(ours, &column);
  v1::Route wires[3];
  for (int i = 0; i < 3; ++i) {
    KeyedRoute keyed;
    keyed.key = "k" + std::to_string(i);
    keyed.ref = MakeKeyRef(*ours.Intern({"t" + std::to_string(i / 2), "d", "o"}), keyed.key);
    WriteKeyedRoute(keyed, scopes, names, &wires[i]);
  }
  EXPECT_EQ(column.size(), 2);
  const auto entries = ReadScopes(column, theirs);
  for (int i = 0; i < 3; ++i) {
    KeyedRoute read;
    ASSERT_TRUE(ReadKeyedRoute(wires[i], entries, names, &read));
    EXPECT_EQ(read.key, "k" + std::to_string(i));
    EXPECT_EQ(theirs.ScopeOf(read.ref.scope).tenant, "t" + std::to_string(i / 2));
  }
  KeyedRoute read;
  wires[0].set_scope(2);
  EXPECT_FALSE(ReadKeyedRoute(wires[0], entries, names, &read));
  wires[1].clear_key();
  EXPECT_FALSE(ReadKeyedRoute(wires[1], entries, names, &read));
}

TEST(Checksum, IsLittleEndianOnTheWire) {
  std::byte bytes[kChecksumBytes];
  StoreChecksum(0x0102030405060708, bytes);
  EXPECT_EQ(bytes[0], std::byte{8});
  EXPECT_EQ(bytes[7], std::byte{1});
  EXPECT_EQ(LoadChecksum(bytes), 0x0102030405060708u);
}

TEST(Wire, SurvivesRandomBytes) {
  std::mt19937_64 random(11);
  NameTable names("self:1");
  ScopeTable scopes;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % (round % 2 == 0 ? 256 : 40));
    v1::Keys keys;
    std::vector<std::string_view> read;
    if (keys.ParseFromString(bytes) && ReadKeys(keys, &read)) {
      for (std::string_view key : read) EXPECT_FALSE(key.empty());
    }
    v1::CheckRequest check;
    if (!check.ParseFromString(bytes)) continue;
    const auto entries = ReadScopes(check.scopes(), scopes);
    for (const v1::Route& route : check.extents()) {
      KeyedRoute keyed;
      (void)ReadKeyedRoute(route, entries, names, &keyed);
    }
  }
}

}  // namespace
}  // namespace mooncake::node

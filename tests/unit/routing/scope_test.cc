#include "routing/scope.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "routing/view.h"

namespace mooncake::routing {
namespace {

// Scopes and keys whose plain concatenations coincide.
const std::vector<Scope> kTrickyScopes = {
    {},
    {"default", "default", "other"},
    {"default", "other", "default"},
    {"other", "default", "default"},
    {"a", "b", "c"},
    {"ab", "", "c"},
    {"a", "bc", ""},
    {"", "ab", "c"},
    {"a:1", "b", "c"},
    {"a", "1:b", "c"},
    {"1:a1:b", "", "c"},
    {"a/b", "c", "d"},
    {"a", "b/c", "d"},
    {"a::ns", "b", "c"},
    {std::string("a\0", 2), "b", "c"},
    {"a", std::string("\0b", 2), "c"},
};

TEST(Scope, NoSpellingOfOneReachesAnother) {
  std::set<std::string> texts;
  std::set<uint64_t> seeds;
  for (const Scope& scope : kTrickyScopes) {
    EXPECT_TRUE(texts.insert(ScopeText(scope)).second) << ScopeText(scope);
    EXPECT_TRUE(seeds.insert(ScopeSeed(scope)).second) << ScopeText(scope);
  }
}

TEST(Scope, TextHasLengthsBeforeFields) {
  EXPECT_EQ(ScopeText({}), "7:default7:default7:default");
  EXPECT_EQ(ScopeText({"", "a:b", "c"}), "0:3:a:b1:c");
}

TEST(KeyHash, DependsOnScopeAndKey) {
  std::set<uint64_t> hashes;
  for (const Scope& scope : kTrickyScopes) {
    for (const char* key : {"", "a", "b", "ab", "default", "c/a"}) {
      EXPECT_TRUE(hashes.insert(KeyHash(ScopeSeed(scope), key)).second);
    }
  }
}

// Nodes of different versions must agree: these values may never change.
TEST(KeyHash, IsPartOfTheProtocol) {
  EXPECT_EQ(ScopeSeed({}), 1'624'199'273'812'440'147u);
  EXPECT_EQ(KeyHash(ScopeSeed({}), ""), 1'134'525'298'734'907'040u);
  EXPECT_EQ(KeyHash(ScopeSeed({}), "key"), 4'304'240'583'034'830'343u);
  EXPECT_EQ(KeyHash(ScopeSeed({"a", "b", "c"}), "key"), 6'538'758'467'779'441'829u);
}

TEST(KeyHash, SpreadsSimilarKeysOverTheSlots) {
  uint64_t seed = ScopeSeed({});
  std::vector<int> per_range(64);
  constexpr int kKeys = 64'000;
  for (int i = 0; i < kKeys; ++i) {
    ++per_range[Slots().Of(KeyHash(seed, "prompt/" + std::to_string(i))) / 1024];
  }
  // 1,000 expected, with a standard deviation of 31.4.
  for (int count : per_range) EXPECT_NEAR(count, 1000, 160);
}

TEST(RouteKeyText, SpellsTheDefaultsShort) {
  struct Case {
    Scope scope;
    std::string key;
    std::string text;
  };
  const std::vector<Case> cases = {
      {{}, "key", "default::key"},
      {{"tenant-a", "default", "default"}, "a::b/c%", "tenant-a::a::b/c%"},
      {{"default", "default", "set"}, "key", "default::ns/default/set/key"},
      {{"t", "d", "o=1:2/3"}, "k/1", "t::ns/d/o%3D1%3A2%2F3/k%2F1"},
      {{"t/x", "d", "o"}, "azAZ09-_.~;", "t%2Fx::ns/d/o/azAZ09-_.%7E%3B"},
      {{"t", "d", "o"}, "\xC3\xA9\n", "t::ns/d/o/%C3%A9%0A"},
      {{"t", "", ""}, "", "t::ns///"},
  };
  for (const Case& c : cases) EXPECT_EQ(RouteKeyText(c.scope, c.key), c.text);
}

}  // namespace
}  // namespace mooncake::routing

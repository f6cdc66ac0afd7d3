// The accounts of tenants with a quota, and the ledger that bounds them together.
#include "node/tenant_meter.h"

#include <gtest/gtest.h>

#include "node/quota_ledger.h"
#include "obs/null_metrics.h"

namespace mooncake::node {
namespace {

using Verdict = QuotaLedger::Verdict;

TenantMeter::Policies QuotaOf(const std::string& tenant, uint64_t bytes) {
  metadata::KnownPolicy known;
  known.record.policy.max_bytes = bytes;
  return {{tenant, known}};
}

class TenantMeterTest : public ::testing::Test {
 protected:
  TenantAccount& Account() {
    meter_.Install(QuotaOf("a", 1000));
    TenantAccount* account = meter_.FindTenant("a");
    account->EndAttempt({1000, 1000}, 1);
    return *account;
  }
  KeyRef Ref(std::string_view key) { return MakeKeyRef(*scopes_.Intern({.tenant = "a"}), key); }

  obs::NullMetrics metrics_;
  ScopeTable scopes_;
  TenantMeter meter_{scopes_, metrics_};
};

TEST_F(TenantMeterTest, HasNoAccountOfTenantsWithoutAQuota) {
  const ScopeIndex a = scopes_.Intern({.tenant = "a"})->index;
  const ScopeIndex b = scopes_.Intern({.tenant = "b"})->index;
  EXPECT_FALSE(meter_.any());
  EXPECT_EQ(meter_.Find(a), nullptr);
  meter_.Install(QuotaOf("a", 1000));
  EXPECT_TRUE(meter_.any());
  ASSERT_NE(meter_.Find(a), nullptr);
  EXPECT_EQ(meter_.Find(b), nullptr);
  EXPECT_EQ(meter_.Find(scopes_.Intern({.tenant = "a", .domain = "x"})->index), meter_.Find(a));
  TenantMeter::Policies both = QuotaOf("a", 1000);
  both.merge(QuotaOf("b", 5));
  meter_.Install(both);
  EXPECT_NE(meter_.Find(b), nullptr);  // What was known of it before is forgotten.
  meter_.Install({});
  EXPECT_EQ(meter_.Find(a)->limit(), std::nullopt);
}

TEST_F(TenantMeterTest, AdmitsGrowthUpToTheGrant) {
  TenantAccount& account = Account();
  Charge first, second, third, none;
  EXPECT_TRUE(account.TryCharge({600, 1}, 0, &first));
  EXPECT_FALSE(account.TryCharge({401, 1}, 0, &second));
  EXPECT_FALSE(account.TryCharge({UINT64_MAX, UINT64_MAX}, 0, &second));
  EXPECT_TRUE(account.TryCharge({400, 1}, 0, &second));
  EXPECT_TRUE(account.TryCharge({0, 0}, 0, &none));
  EXPECT_TRUE(account.Settle(&first, {}, {600, 1}));
  EXPECT_EQ(account.amounts().used, (Load{600, 1}));
  EXPECT_EQ(account.amounts().pending, (Load{400, 1}));
  second.Release();  // Its put failed.
  EXPECT_TRUE(account.TryCharge({400, 1}, 0, &third));
  first.Release();  // Settled: nothing is given back twice.
  EXPECT_TRUE(account.TryCharge({0, 0}, 0, &third));
  EXPECT_EQ(account.amounts().pending, Load{});  // What it held before is given back.
  EXPECT_EQ(account.amounts().used, (Load{600, 1}));
}

TEST_F(TenantMeterTest, AnOverwriteNeedsRoomForItsGrowthAlone) {
  TenantAccount& account = Account();
  account.Raise({1000, 1});
  Charge charge;
  ASSERT_TRUE(account.TryCharge({0, 0}, 0, &charge));
  EXPECT_TRUE(account.Settle(&charge, {1000, 1}, {1000, 1}));
  EXPECT_EQ(account.amounts().used, (Load{1000, 1}));
  // Its predecessor went between the admission and the publication: then it is growth after all.
  Charge late;
  ASSERT_TRUE(account.TryCharge({0, 0}, 0, &late));
  account.Lower({1000, 1});
  Charge other;
  ASSERT_TRUE(account.TryCharge({900, 1}, 0, &other));
  EXPECT_FALSE(account.Settle(&late, {}, {1000, 1}));
  EXPECT_EQ(account.amounts().used, Load{});
}

TEST_F(TenantMeterTest, KeepsTheChargesOfWritersUntilTheyAreOver) {
  TenantAccount& account = Account();
  const auto keep = [&](NameIndex writer, std::string_view key, uint64_t until_ms) {
    Charge charge;
    ASSERT_TRUE(account.TryCharge({100, 1}, 0, &charge));
    ASSERT_TRUE(account.Keep(writer, Ref(key), std::move(charge), until_ms));
  };
  keep(1, "k", 50);
  keep(2, "k", 1'000);
  keep(3, "l", 1'000);
  EXPECT_FALSE(account.Take(1, Ref("l")));
  EXPECT_TRUE(account.Take(2, Ref("k")));
  EXPECT_EQ(account.amounts().pending, (Load{200, 2}));
  account.Stand(true, 1, 50);
  EXPECT_EQ(account.amounts().pending, (Load{100, 1}));
  EXPECT_FALSE(account.Take(1, Ref("k")));
  account.ForgetWriters([](NameIndex writer) { return writer == 3; });
  EXPECT_EQ(account.amounts().pending, Load{});
}

TEST_F(TenantMeterTest, TellsHowItStandsAndKeepsNoMoreThanThat) {
  TenantAccount& account = Account();
  account.Raise({300, 3});
  EXPECT_EQ(account.Stand(false, 1, 0).granted, (Load{1000, 1000}));
  EXPECT_EQ(account.Stand(true, 2, 0).granted, (Load{300, 3}));
  Charge charge;
  EXPECT_FALSE(account.TryCharge({1, 0}, 0, &charge));
  // What an old ledger grants after the new one was told is not known to that one.
  account.EndAttempt({500, 5}, 1);
  EXPECT_EQ(account.amounts().granted, (Load{300, 3}));
  account.EndAttempt({500, 5}, 2);
  EXPECT_EQ(account.amounts().granted, (Load{800, 8}));
  // Keys that it has taken over.
  account.Raise({700, 7});
  EXPECT_EQ(account.Stand(false, 2, 0).granted, (Load{1000, 10}));
}

TEST_F(TenantMeterTest, ANewLimitVoidsWhatIsUnusedOfTheGrant) {
  TenantAccount& account = Account();
  account.Raise({300, 3});
  meter_.Install(QuotaOf("a", 200));
  EXPECT_EQ(account.amounts().granted, (Load{300, 3}));
  // What goes makes no room: the sum may still be above the limit.
  account.Lower({200, 2});
  Charge charge;
  EXPECT_FALSE(account.TryCharge({1, 0}, 0, &charge));
  account.EndAttempt({50, 5}, 1);
  EXPECT_TRUE(account.TryCharge({50, 1}, 0, &charge));
  charge.Release();
  account.Lower({100, 1});
  EXPECT_TRUE(account.TryCharge({150, 2}, 0, &charge));
}

TEST_F(TenantMeterTest, CannotTellHowItStandsWhileViewsChange) {
  TenantAccount& account = Account();
  meter_.EndCount(meter_.BeginCount(), 7);
  EXPECT_EQ(meter_.Stand(&account, true, 0).revision, 7u);
  EXPECT_EQ(meter_.Stand(nullptr, true, 0).revision, 7u);
  const uint64_t begun = meter_.BeginCount();
  EXPECT_EQ(meter_.Stand(&account, true, 0).revision, 0u);
  // Meanwhile keys were asked for: what was counted is of no view.
  const uint64_t again = meter_.BeginCount();
  meter_.EndCount(begun, 8);
  EXPECT_EQ(meter_.Stand(&account, true, 0).revision, 0u);
  meter_.EndCount(again, 9);
  EXPECT_EQ(meter_.Stand(&account, true, 0).revision, 9u);
}

// --- The ledger
// -----------------------------------------------------------------------------------

class LedgerTest : public ::testing::Test {
 protected:
  // `asker` has `held`, and asks for `want`.
  QuotaLedger::Answer Ask(const std::string& asker, uint64_t held, uint64_t want,
                          std::vector<Standing> others = {}, bool surveyed = false) {
    QuotaLedger::Question question;
    question.tenant = "t";
    question.limit = {1000, uint64_t{1} << 62};
    question.revision = revision_;
    question.members = {"a", "b", "c"};
    question.asker = {asker, revision_, ++attempts_[asker], {held, 0}};
    question.want = {want, 0};
    question.others = std::move(others);
    question.surveyed = surveyed;
    return ledger_.Decide(question);
  }
  Standing At(const std::string& node, uint64_t granted) {
    return {node, revision_, attempts_[node], {granted, 0}};
  }
  QuotaLedger::Answer AskSurveyed(const std::string& asker, uint64_t held, uint64_t want,
                                  std::vector<Standing> others) {
    return Ask(asker, held, want, std::move(others), true);
  }

  QuotaLedger ledger_;
  uint64_t revision_ = 5;
  std::map<std::string, uint64_t> attempts_;
};

TEST_F(LedgerTest, GrantsNothingBeforeItKnowsHowEveryMemberStands) {
  EXPECT_EQ(Ask("a", 0, 10).verdict, Verdict::kSurveyFirst);
  const auto answer = AskSurveyed("a", 0, 700, {At("b", 200), At("c", 50)});
  EXPECT_EQ(answer.verdict, Verdict::kGranted);
  EXPECT_GE(answer.amount.bytes, 700u);
  EXPECT_LE(answer.amount.bytes, 750u);
}

TEST_F(LedgerTest, NeverGrantsMoreThanTheQuotaTogether) {
  const uint64_t a = AskSurveyed("a", 0, 600, {At("b", 0), At("c", 0)}).amount.bytes;
  EXPECT_GE(a, 600u);
  EXPECT_EQ(Ask("b", 0, 500).verdict, Verdict::kSurveyFirst);  // Somebody may have some to spare.
  const uint64_t b = AskSurveyed("b", 0, 500, {At("a", a), At("c", 0)}).amount.bytes;
  EXPECT_EQ(a + b, 1000u);
  EXPECT_EQ(AskSurveyed("c", 0, 1, {At("a", a), At("b", b)}).amount.bytes, 0u);
  // What is given back is there for others.
  EXPECT_EQ(AskSurveyed("c", 0, 100, {At("a", a - 100), At("b", b)}).amount.bytes, 100u);
}

TEST_F(LedgerTest, CountsAGrantWhoseReplyIsStillUnderWay) {
  const Standing before = At("a", 0);
  const uint64_t a = AskSurveyed("a", 0, 600, {At("b", 0), At("c", 0)}).amount.bytes;
  // A survey from before the reply arrived says that a has nothing.
  EXPECT_EQ(AskSurveyed("b", 0, 1000, {before, At("c", 0)}).amount.bytes, 1000 - a);
}

TEST_F(LedgerTest, IgnoresAQuestionThatComesLate) {
  AskSurveyed("a", 0, 10, {At("b", 0), At("c", 0)});
  --attempts_["a"];
  EXPECT_EQ(Ask("a", 0, 10).verdict, Verdict::kStale);
}

TEST_F(LedgerTest, ANewViewMeansANewSurvey) {
  AskSurveyed("a", 0, 10, {At("b", 0), At("c", 0)});
  EXPECT_EQ(Ask("a", 10, 10).verdict, Verdict::kGranted);
  const Standing old = At("b", 0);
  ++revision_;
  EXPECT_EQ(Ask("a", 10, 10).verdict, Verdict::kSurveyFirst);
  EXPECT_EQ(AskSurveyed("a", 10, 10, {old, At("c", 0)}).verdict, Verdict::kSurveyFirst);
  EXPECT_EQ(AskSurveyed("a", 10, 10, {At("b", 0), At("c", 0)}).verdict, Verdict::kGranted);
}

TEST_F(LedgerTest, AsOfASilentMemberItHasWhatItHadOrNobodyKnows) {
  EXPECT_EQ(AskSurveyed("a", 0, 10, {At("b", 0)}).verdict, Verdict::kSilent);
  AskSurveyed("a", 0, 10, {At("b", 0), At("c", 400)});
  ++revision_;
  const auto answer = AskSurveyed("a", 10, 1000, {At("b", 0)});
  EXPECT_EQ(answer.verdict, Verdict::kGranted);
  EXPECT_EQ(answer.amount.bytes, 590u);
}

TEST_F(LedgerTest, SurvivesNonsense) {
  const auto answer = AskSurveyed("a", UINT64_MAX, UINT64_MAX,
                                  {At("b", UINT64_MAX), At("c", UINT64_MAX), At("stranger", 1)});
  EXPECT_EQ(answer.verdict, Verdict::kGranted);
  EXPECT_EQ(answer.amount.bytes, 0u);
}

}  // namespace
}  // namespace mooncake::node

#include "mooncake/config.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "base/segment_limits.h"
#include "client/config/config_parse.h"
#include "client/config/config_table.h"
#include "mooncake/dummy.h"

namespace mooncake {
namespace {

using client_config::Settings;
using client_config::Split;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Texts = std::map<std::string, std::string>;

// The least that works, changed as a test needs it.
Texts Values(const Texts& changes = {}) {
  Texts values = {{"local_hostname", "127.0.0.1"},
                  {"metadata_url", "sqlite:///tmp/cluster.db"},
                  {"global_segment_size", "64MB"}};
  for (const auto& [name, text] : changes) values[name] = text;
  return values;
}

std::string ErrorOf(const Texts& changes, const Texts& environment = {}) {
  const Result<StoreConfig> config = ConfigFromValues(Values(changes), environment);
  if (config) return "no error";
  EXPECT_EQ(config.code(), ErrorCode::kInvalidArgument);
  return config.error().context;
}

TEST(Config, TableDefaultsAreTheRealOnes) {
  const StoreConfig untouched;
  for (const auto& setting : Settings()) {
    if (setting.initial.empty()) continue;
    StoreConfig config;
    ASSERT_TRUE(setting.apply({setting.name, setting.initial}, config)) << setting.name;
    EXPECT_EQ(config.keyspace, untouched.keyspace);
    EXPECT_EQ(config.protocol, untouched.protocol);
    EXPECT_EQ(config.initial_state, untouched.initial_state);
    EXPECT_EQ(config.tenant, untouched.tenant);
    EXPECT_EQ(config.route_control, untouched.route_control);
    EXPECT_EQ(config.transport_backend, untouched.transport_backend);
    EXPECT_EQ(config.replica_count, untouched.replica_count);
    EXPECT_EQ(config.route_topk, untouched.route_topk);
    EXPECT_EQ(config.lease_ttl_ms, untouched.lease_ttl_ms);
    EXPECT_EQ(config.request_timeout_ms, untouched.request_timeout_ms);
    EXPECT_EQ(config.startup_timeout_ms, untouched.startup_timeout_ms);
    EXPECT_EQ(config.heartbeat_timeout_ms, untouched.heartbeat_timeout_ms);
    EXPECT_EQ(config.transfer_stall_timeout_ms, untouched.transfer_stall_timeout_ms);
    EXPECT_EQ(config.eviction_high_watermark_percent, untouched.eviction_high_watermark_percent);
    EXPECT_EQ(config.eviction_low_watermark_percent, untouched.eviction_low_watermark_percent);
    EXPECT_EQ(config.redis_io_timeout_ms, untouched.redis_io_timeout_ms);
  }
}

TEST(Config, NamesAndVariablesAreUnique) {
  std::set<std::string_view> names;
  for (const auto& setting : Settings()) {
    EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
    for (auto alias : Split(setting.aliases, ' ')) EXPECT_TRUE(names.insert(alias).second) << alias;
    for (auto name : Split(setting.environment, ' ')) {
      EXPECT_TRUE(names.insert(name).second) << name;
    }
  }
}

TEST(Config, OwnNameThenAliasThenEnvironmentThenDefault) {
  const Texts environment = {{"MC_STORE_RS_TENANT", "e"}};
  EXPECT_EQ(ConfigFromValues(Values(), {})->tenant, "default");
  EXPECT_EQ(ConfigFromValues(Values(), environment)->tenant, "e");
  EXPECT_EQ(ConfigFromValues(Values({{"tenant_id", "a"}}), environment)->tenant, "a");
  EXPECT_EQ(ConfigFromValues(Values({{"tenant_id", "a"}, {"tenant", "o"}}), environment)->tenant,
            "o");
}

TEST(Config, EmptyTextCountsAsAbsent) {
  const Texts environment = {{"MC_STORE_RS_DOMAIN", "e"}};
  EXPECT_EQ(ConfigFromValues(Values({{"domain", ""}}), environment)->domain, "e");
  EXPECT_EQ(ConfigFromValues(Values({{"transport_metadata_url", ""}}), {})->transport_metadata_url,
            "P2PHANDSHAKE");
}

TEST(Config, UnknownNameSuggestsTheNearest) {
  EXPECT_THAT(ErrorOf({{"replica_cuont", "2"}}),
              AllOf(HasSubstr("replica_cuont"), HasSubstr("did you mean \"replica_count\"")));
  EXPECT_EQ(NearestConfigName("metadata-server"), "metadata_server");
  EXPECT_EQ(NearestConfigName("tenant"), "");
  EXPECT_EQ(NearestConfigName("qqqqqqqqqqqqqqqqqqqqqqq"), "");
  EXPECT_TRUE(IsConfigName("master_server_address"));
  EXPECT_FALSE(IsConfigName("epoch"));
}

TEST(Config, MetadataUrlIsCheckedAndItsPasswordHidden) {
  for (const char* good : {"memory://m", "sqlite:///var/x.db", "redis://127.0.0.1:6379/0",
                           "redis://u:p@h:1/2", "rediss://h:1/0", "etcd://a:1,b:2"}) {
    EXPECT_EQ(ErrorOf({{"metadata_url", good}}), "no error") << good;
  }
  for (const char* bad : {"http://h:8080/metadata", "h:1", "redis://", "memory://", "sqlite://x",
                          "sqlite://", "mysql://h/1"}) {
    EXPECT_THAT(ErrorOf({{"metadata_url", bad}}),
                AllOf(HasSubstr("metadata_url"), HasSubstr("sqlite:///"), HasSubstr("redis://"),
                      HasSubstr("etcd://"), HasSubstr("memory://")))
        << bad;
  }
  EXPECT_THAT(ErrorOf({{"metadata_url", "mysql://user:hunter2@h/1"}}), Not(HasSubstr("hunter2")));
}

TEST(Config, RequiredSettingsAreNamed) {
  EXPECT_THAT(ErrorOf({{"metadata_url", ""}}),
              AllOf(HasSubstr("metadata_url"), HasSubstr("required")));
  EXPECT_THAT(ErrorOf({{"local_hostname", ""}}),
              AllOf(HasSubstr("local_hostname"), HasSubstr("required")));
}

TEST(Config, MessagesUseTheNameThatWasGiven) {
  Texts values = Values({{"master_server", "http://x"}});
  values.erase("metadata_url");
  const auto by_alias = ConfigFromValues(values, {});
  ASSERT_FALSE(by_alias);
  EXPECT_THAT(by_alias.error().context, HasSubstr("master_server is"));
  EXPECT_THAT(ErrorOf({}, {{"MC_STORE_RS_ROUTE_TOPK", "1"}}),
              HasSubstr("MC_STORE_RS_ROUTE_TOPK is \"1\""));
}

TEST(Config, TransportMetadataIsTheHandshakeOrRedis) {
  EXPECT_EQ(ErrorOf({{"transport_metadata_url", "redis://h:1/0"}}), "no error");
  EXPECT_EQ(ErrorOf({{"metadata_server", "P2PHANDSHAKE"}}), "no error");
  EXPECT_THAT(ErrorOf({{"metadata_server", "http://h/metadata"}}),
              AllOf(HasSubstr("metadata_server"), HasSubstr("P2PHANDSHAKE")));
}

TEST(Config, PortInTheHostnameIsTheNodePort) {
  const auto config = *ConfigFromValues(Values({{"local_hostname", "[::1]:17111"}}), {});
  EXPECT_EQ(config.local_hostname, "::1");
  EXPECT_EQ(config.transport_rpc_port, 17'111);
  const Texts same = {{"local_hostname", "h:5"}, {"rpc_server_port", "5"}};
  EXPECT_EQ(ErrorOf(same), "no error");
  const Texts other = {{"local_hostname", "h:5"}, {"rpc_server_port", "6"}};
  EXPECT_THAT(ErrorOf(other), AllOf(HasSubstr("rpc_server_port"), HasSubstr("h:5")));
  EXPECT_THAT(ErrorOf({{"transport_rpc_port", "65536"}}), HasSubstr("0 to 65535"));
}

TEST(Config, StorageFollowsFromTheSegmentSize) {
  EXPECT_EQ(ConfigFromValues(Values(), {})->labels.at("storage"), "true");
  const Texts routed = {{"global_segment_size", "0"}, {"routed_writes", "true"}};
  EXPECT_EQ(ConfigFromValues(Values(routed), {})->labels.at("storage"), "false");
  const Texts unused = {{"labels", "storage=false"}, {"routed_writes", "true"}};
  EXPECT_EQ(ConfigFromValues(Values(unused), {})->global_segment_size, 0U);
  EXPECT_THAT(ErrorOf({{"global_segment_size", "0"}, {"labels", "storage=true"}}),
              HasSubstr("global_segment_size"));
  for (const std::string tiny : {"1", "4095"}) {
    EXPECT_THAT(ErrorOf({{"storage_bytes", tiny}, {"global_segment_size", ""}}),
                AllOf(HasSubstr("storage_bytes"), HasSubstr(tiny), HasSubstr("at least 4096")));
  }
  EXPECT_EQ(ConfigFromValues(Values({{"global_segment_size", "4096"}}), {})->global_segment_size,
            kSegmentSizeMin);
  EXPECT_THAT(ErrorOf({{"labels", "storage=false"}}), HasSubstr("routed_writes"));
  EXPECT_THAT(ErrorOf({{"labels", "storage=perhaps"}}), HasSubstr("label storage"));
}

TEST(Config, LabelsWithAMeaningHaveValuesThatMakeSense) {
  for (const std::string weight : {"0.5", "1", "2.5", "1024", "1e2"}) {
    EXPECT_EQ(ErrorOf({{"labels", "route_weight=" + weight}}), "no error") << weight;
  }
  for (const std::string weight :
       {"abc", "-1", "0", "nan", "inf", "1e300", "1e-300", "1025", "", "2x"}) {
    EXPECT_THAT(ErrorOf({{"labels", "route_weight=" + weight}}),
                AllOf(HasSubstr("label route_weight"), HasSubstr("\"" + weight + "\""),
                      HasSubstr("allowed: a number above 0")))
        << weight;
  }
  EXPECT_EQ(ErrorOf({{"labels", R"({"route_weight": 2})"}}), "no error");
  EXPECT_THAT(ErrorOf({{"labels", "route=perhaps"}}),
              AllOf(HasSubstr("label route"), HasSubstr("perhaps")));
  EXPECT_EQ(ConfigFromValues(Values({{"labels", "route=No"}}), {})->labels.at("route"), "false");
}

TEST(Config, WatermarksAreInOrder) {
  const auto marks = [](std::string high, std::string low) {
    return Texts{{"eviction_high_watermark_percent", std::move(high)},
                 {"eviction_low_watermark_percent", std::move(low)}};
  };
  EXPECT_EQ(ErrorOf(marks("100", "99")), "no error");
  EXPECT_THAT(ErrorOf(marks("80", "80")),
              AllOf(HasSubstr("eviction_low_watermark_percent"), HasSubstr("is 80")));
  EXPECT_THAT(ErrorOf(marks("101", "80")), HasSubstr("eviction_high_watermark_percent"));
  EXPECT_THAT(ErrorOf(marks("0", "0")), HasSubstr("1 to 100"));
}

TEST(Config, HugepageSizeAloneTurnsHugepagesOn) {
  const auto hugepages = [](const Texts& changes) {
    const StoreConfig config = *ConfigFromValues(Values(changes), {});
    return std::pair(config.use_hugepage, config.hugepage_size);
  };
  EXPECT_EQ(hugepages({}), std::pair(false, uint64_t{0}));
  EXPECT_EQ(hugepages({{"hugepage_size", "1GB"}}), std::pair(true, uint64_t{1} << 30));
  EXPECT_EQ(hugepages({{"use_hugepage", "1"}}), std::pair(true, uint64_t{2} << 20));
  EXPECT_EQ(hugepages({{"use_hugepage", "0"}, {"hugepage_size", "2MB"}}),
            std::pair(false, uint64_t{0}));
}

TEST(Config, HeartbeatsComeAtLeastThriceALease) {
  const auto interval = [](std::string heartbeat, std::string lease) {
    return ConfigFromValues(Values({{"heartbeat_interval_ms", std::move(heartbeat)},
                                    {"lease_ttl_ms", std::move(lease)}}),
                            {})
        ->heartbeat_interval_ms;
  };
  EXPECT_EQ(interval("0", "9000"), 3'000U);
  EXPECT_EQ(interval("15000", "9000"), 3'000U);
  EXPECT_EQ(interval("500", "2000"), 500U);
  EXPECT_THAT(ErrorOf({{"lease_ttl_ms", "0"}}), HasSubstr("lease_ttl_ms"));
}

TEST(Config, ALeaseIsNoLongerThanServicesKeepOne) {
  EXPECT_EQ(ErrorOf({{"lease_ttl_ms", "604800000"}}), "no error");
  EXPECT_THAT(
      ErrorOf({{"lease_ttl_ms", "604800001"}}),
      AllOf(HasSubstr("lease_ttl_ms"), HasSubstr("604800001"), HasSubstr("1 to 604800000")));
  EXPECT_THAT(ErrorOf({}, {{"MC_STORE_RS_LEASE_TTL_MS", "604800001"}}),
              HasSubstr("MC_STORE_RS_LEASE_TTL_MS"));
}

TEST(Config, ReplicaCountZeroMeansOne) {
  EXPECT_EQ(ConfigFromValues(Values({{"replica_count", "0"}}), {})->replica_count, 1U);
  EXPECT_THAT(ErrorOf({{"replica_count", "-1"}}), HasSubstr("replica_count"));
  EXPECT_THAT(ErrorOf({{"route_topk", "1"}}), HasSubstr("route_topk"));
}

TEST(Config, VariablesThatAskForTlsAreRefused) {
  for (const char* name :
       {"MC_STORE_RS_TLS_CERT_FILE", "MC_STORE_RS_TLS_KEY_FILE", "MC_STORE_RS_TLS_CA_FILE"}) {
    const std::map<std::string, std::string> dummy = {{"server_address", "127.0.0.1:1"}};
    for (const Error& error : {ConfigFromValues(Values(), {{name, "/x.pem"}}).error(),
                               DummyConfigFromValues(dummy, {{name, "/x.pem"}}).error()}) {
      EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
      EXPECT_NE(error.context.find(name), std::string::npos) << error.context;
      EXPECT_NE(error.context.find("TLS is not supported"), std::string::npos) << error.context;
    }
    EXPECT_TRUE(ConfigFromValues(Values(), {{name, ""}}).ok());
    EXPECT_TRUE(DummyConfigFromValues(dummy, {{name, ""}}).ok());
  }
}

TEST(Config, VariablesOfDummyClientsMustMakeSense) {
  for (const char* text : {"abc", "0", "-1", "1.5"}) {
    EXPECT_THAT(ErrorOf({}, {{"MC_STORE_RS_DUMMY_RPC_TIMEOUT_MS", text}}),
                AllOf(HasSubstr("MC_STORE_RS_DUMMY_RPC_TIMEOUT_MS"), HasSubstr(text)));
  }
  EXPECT_THAT(ErrorOf({}, {{"MC_STORE_RS_DISABLE_SHM", "maybe"}}),
              AllOf(HasSubstr("MC_STORE_RS_DISABLE_SHM"), HasSubstr("maybe")));
  EXPECT_TRUE(ConfigFromValues(Values(), {{"MC_STORE_RS_DISABLE_SHM", "1"},
                                          {"MC_STORE_RS_DUMMY_RPC_TIMEOUT_MS", "5000"}})
                  .ok());
}

TEST(Config, VariablesWithoutEffectAreNamedInOneWarning) {
  testing::internal::CaptureStderr();
  EXPECT_TRUE(ConfigFromValues(Values(), {{"MC_STORE_RS_REDIS_CONNECTION_POOL_SIZE", "7"},
                                          {"MC_STORE_RS_GID_INDEX", "3"},
                                          {"MC_STORE_RS_REDIS_RETRY_ATTEMPTS", " "}})
                  .ok());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, AllOf(HasSubstr("MC_STORE_RS_GID_INDEX, MC_STORE_RS_REDIS_CONNECTION_POOL_SIZE"),
                         Not(HasSubstr("RETRY_ATTEMPTS"))));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
}

TEST(Config, ATraceFilterNamesLevels) {
  for (const char* text : {"info", "WARN", "store=debug,info", "some_target", "a::b=trace"}) {
    EXPECT_TRUE(ConfigFromValues(Values({{"trace_filter", text}}), {}).ok()) << text;
  }
  EXPECT_THAT(ErrorOf({}, {{"MC_STORE_RS_TRACE_FILTER", "info,bogus=zzz"}}),
              AllOf(HasSubstr("MC_STORE_RS_TRACE_FILTER"), HasSubstr("bogus=zzz")));
}

TEST(Config, AClientHttpPortStartsTheServerUnlessItIsSwitchedOff) {
  const auto serves = [](const Texts& changes) {
    return ConfigFromValues(Values(changes), {})->enable_client_http_server;
  };
  EXPECT_TRUE(serves({{"client_http_port", "9100"}}));
  EXPECT_FALSE(serves({{"client_http_port", "0"}}));
  EXPECT_FALSE(serves({{"client_http_port", "9100"}, {"enable_client_http_server", "false"}}));
}

TEST(Config, NamesOfTheScopeAreText) {
  for (const char* name : {"tenant", "domain", "object_set"}) {
    EXPECT_EQ(ErrorOf({{name, "caf\xc3\xa9"}}), "no error");
    EXPECT_EQ(ErrorOf({{name, "caf\xe9"}}), std::string(name) + ": expected UTF-8");
  }
}

TEST(Config, SecretMayComeFromAFile) {
  const std::string path = testing::TempDir() + "config_test_secret";
  std::ofstream(path) << "s3cret\n";
  EXPECT_EQ(ConfigFromValues(Values({{"cluster_secret_file", path}}), {})->cluster_secret,
            "s3cret");
  EXPECT_THAT(ErrorOf({{"cluster_secret_file", "/nonexistent"}}), HasSubstr("/nonexistent"));
}

TEST(Config, PageHasARowForEachSetting) {
  const std::string page = ConfigTableMarkdown();
  EXPECT_THAT(page,
              HasSubstr("| `lease_ttl_ms` |  | `--lease-ttl-ms` | `MC_STORE_RS_LEASE_TTL_MS`"));
  EXPECT_EQ(std::count(page.begin(), page.end(), '\n'),
            static_cast<ptrdiff_t>(Settings().size() + 2));
}

// MOONCAKE_UPDATE_DOCS=1 writes the page instead of comparing it.
TEST(Config, PageInTheDocumentationIsThisTable) {
  const char* folder = std::getenv("MOONCAKE_DOCS");
  if (folder == nullptr) GTEST_SKIP() << "MOONCAKE_DOCS is not set; ctest sets it";
  const std::string path = std::string(folder) + "/configuration.md";
  constexpr std::string_view kStart = "<!-- table -->\n";
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  const std::string page = content.str();
  const size_t start = page.find(kStart);
  ASSERT_NE(start, std::string::npos) << path;
  const std::string head = page.substr(0, start + kStart.size());
  if (std::getenv("MOONCAKE_UPDATE_DOCS") != nullptr) {
    std::ofstream(path) << head << ConfigTableMarkdown();
    return;
  }
  EXPECT_EQ(page, head + ConfigTableMarkdown())
      << "run ctest -R unit.config with MOONCAKE_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace mooncake

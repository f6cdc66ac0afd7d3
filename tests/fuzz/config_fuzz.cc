// Settings: from the caller, the environment and files.
#include <gtest/gtest.h>

#include "base/text.h"
#include "client/config/config_parse.h"
#include "client/config/config_table.h"
#include "fuzz/fuzz.h"
#include "mooncake/config.h"
#include "mooncake/dummy.h"
#include "mooncake/observability.h"

namespace mooncake::fuzz {
namespace {

using Texts = std::map<std::string, std::string>;

// Lines of NAME=VALUE; NUL cannot be part of a variable.
Texts TextsOf(std::string_view lines) {
  Texts texts;
  for (const std::string_view line : base::Split(lines, '\n')) {
    const size_t equals = line.find('=');
    if (equals != std::string_view::npos)
      texts[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  return texts;
}

// No input may make the configuration read a file that never ends.
void DropFiles(Texts& texts) {
  std::erase_if(texts, [](const auto& text) { return base::Lower(text.first).ends_with("_file"); });
}

// That it names one of the settings that were given, whatever that setting is.
std::string WrongSetting(const Error& error, const Texts& values, const Texts& environment) {
  if (error.code != ErrorCode::kInvalidArgument) return "the error is " + error.ToString();
  for (const Texts* texts : {&values, &environment}) {
    for (const auto& [name, text] : *texts) {
      if (error.context.find(name) != std::string::npos) return kRight;
    }
  }
  for (const client_config::Setting& setting : client_config::Settings()) {
    if (error.context.find(setting.name) != std::string::npos) return kRight;
  }
  return "the error names no setting: " + error.context;
}

// Whether the password of a setting that is a URL shows. Where the input has two, one may be in a
// setting, or a name, that is shown.
bool LeaksUrl(const std::string& input, const Texts& values, const std::string& shown) {
  if (input.find(kPassword) != input.rfind(kPassword)) return false;
  return std::ranges::any_of(values, [&](const auto& value) {
    const client_config::Setting* setting = client_config::FindSetting(value.first);
    const bool url = setting != nullptr && base::Lower(setting->type) == "url";
    return url && Leaks(value.second, shown);
  });
}

const std::string kPasswordText(kPassword);
const std::vector<std::string> kSettingSamples = {
    "local_hostname=host:1\nmetadata_url=redis://u:" + kPasswordText +
        "@h:1/0\nglobal_segment_size=64MB\nlabels=a=b,c=d\nlease_ttl_ms=1000\n",
    "local_hostname=[::1]:4000\nmetadata_url=memory://x\nlabels={\"a\":1,\"b\":true}\n"
    "routed_writes=on\nreplica_count=3\nhugepage_size=2MB\nprotocol=tcp\n",
    "local_hostname=h\nrouted_writes=1\nmaster_server=etcd://a:1,b:2/p\nlocal_hot_cache_size=-1\n"
    "metrics_addr=0.0.0.0:9\notlp_endpoint=http://u:" +
        kPasswordText +
        "@h:4318/"
        "v1\notlp_sample_ratio=0.5\notlp_headers=k=v%41\ntrace_filter=info,mooncake=debug\n",
    "local_hostname=h:7\nrouted_writes=t\ntransport_rpc_port=7\nmetadata_url=sqlite:///tmp/"
    "m.db\nslot_bits=17\n"
    "eviction_high_watermark_percent=90\neviction_low_watermark_percent=80\nstate=standby\n"};

TEST(ConfigFuzz, SettingsAreReadOrTheOneThatIsWrongIsNamed) {
  RunTarget({.samples = kSettingSamples,
             .check =
                 [](const std::string& input) {
                   Texts values = TextsOf(input);
                   DropFiles(values);
                   const Result<StoreConfig> config = ConfigFromValues(values, {});
                   MC_FUZZ_CHECK(config || std::ranges::count(kSettingSamples, input) == 0);
                   if (!config) {
                     MC_FUZZ_CHECK(!LeaksUrl(input, values, config.error().context));
                     return WrongSetting(config.error(), values, {});
                   }
                   MC_FUZZ_CHECK(config->labels.contains("storage"));
                   MC_FUZZ_CHECK(config->heartbeat_interval_ms < config->lease_ttl_ms ||
                                 config->lease_ttl_ms <= 1);
                   MC_FUZZ_CHECK(config->replica_count >= 1 && config->replica_count <= 64);
                   return kRight;
                 },
             .allocated_per_byte_max = 400,
             .cost = 4});
}

TEST(ConfigFuzz, TheEnvironmentIsReadOrTheVariableThatIsWrongIsNamed) {
  const std::string prefix = "MC_STORE_RS_";
  RunTarget(
      {.samples = {prefix + "METADATA_URL=memory://x\nMOONCAKE_LOCAL_HOSTNAME=h\n" + prefix +
                       "STORAGE_BYTES=1G\n" + prefix + "LABELS=a=b\n",
                   prefix + "DISABLE_SHM=1\n" + prefix + "DUMMY_RPC_TIMEOUT_MS=5\nMC_GID_INDEX=0\n",
                   "OTEL_EXPORTER_OTLP_ENDPOINT=http://h:1\nOTEL_RESOURCE_ATTRIBUTES=a=b%20c\n"
                   "OTEL_TRACES_SAMPLER_ARG=0.25\nOTEL_EXPORTER_OTLP_TIMEOUT=10\n",
                   prefix + "TLS_CERT_FILE=\n" + prefix + "SLOT_BITS=16\n"},
       .check =
           [](const std::string& input) {
             Texts environment = TextsOf(input);
             DropFiles(environment);
             const Texts values = {{"local_hostname", "h"}, {"metadata_url", "memory://m"}};
             const Result<StoreConfig> config = ConfigFromValues(values, environment);
             if (!config) return WrongSetting(config.error(), values, environment);
             const Result<TraceConfig> trace = TraceConfigFromEnvironment(environment);
             MC_FUZZ_CHECK(trace.ok());
             MC_FUZZ_CHECK(trace->otlp_sample_ratio >= 0 && trace->otlp_sample_ratio <= 1);
             return kRight;
           },
       .allocated_per_byte_max = 400,
       .cost = 4});
}

TEST(ConfigFuzz, ADummyNeedsAnAddressWithAPort) {
  RunTarget({.samples = {"server_address=h:1\nkeyspace=k\nworker_scope=w\n",
                         "server_address=[::1]:65535\n", "server_address= h:1 \n"},
             .check = [](const std::string& input) {
               const Texts values = TextsOf(input);
               const Texts environment = {{"MC_STORE_RS_CLUSTER_SECRET", "s"}};
               const Result<DummyConfig> config = DummyConfigFromValues(values, environment);
               if (!config) {
                 return WrongError(config.error(), ErrorCode::kInvalidArgument, "server_address");
               }
               MC_FUZZ_CHECK(config->server_address.find(':') != std::string::npos);
               return kRight;
             }});
}

TEST(ConfigFuzz, LabelsAreReadOrTheFieldIsNamed) {
  RunTarget({.samples = {"a=b,c=d", R"({"a":"b","n":1,"f":1.5,"t":true})", " a = b , c = ", "{}"},
             .check =
                 [](const std::string& input) {
                   const auto labels = client_config::ParseLabels("some_labels", input);
                   if (!labels) {
                     return WrongError(labels.error(), ErrorCode::kInvalidArgument, "some_labels");
                   }
                   MC_FUZZ_CHECK(!labels->contains(""));
                   return kRight;
                 },
             // A level of JSON is a byte for the sender and a value with its list for us.
             .allocated_per_byte_max = 400});
}

TEST(ConfigFuzz, WordsAndNumbersAreReadOrTheFieldIsNamed) {
  RunTarget({.samples = {"true", "OFF", "17", "2MB", "1073741824", "embedded-wrh", "tcp"},
             .check =
                 [](const std::string& input) {
                   const auto invalid = ErrorCode::kInvalidArgument;
                   const auto flag = client_config::ParseBool("some_field", input);
                   const auto number = client_config::ParseInteger("some_field", input, 3, 900);
                   const auto pages = client_config::ParseHugepageSize("some_field", input);
                   const auto choice =
                       client_config::ParseChoice("some_field", input, "tcp rdma|ib auto");
                   std::string wrong;
                   if (!flag) wrong += WrongError(flag.error(), invalid, "some_field");
                   if (!number) wrong += WrongError(number.error(), invalid, "some_field");
                   if (!pages) wrong += WrongError(pages.error(), invalid, "some_field");
                   if (!choice) wrong += WrongError(choice.error(), invalid, "some_field");
                   MC_FUZZ_CHECK(!number || (*number >= 3 && *number <= 900));
                   MC_FUZZ_CHECK(!choice || *choice == "tcp" || *choice == "rdma" ||
                                 *choice == "auto");
                   (void)NearestConfigName(input);
                   return wrong;
                 },
             .cost = 2});
}

}  // namespace
}  // namespace mooncake::fuzz

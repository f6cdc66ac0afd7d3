// What the table says about itself: names and the page of the documentation.
#include <algorithm>
#include <numeric>
#include <vector>

#include "client/config/config_parse.h"
#include "client/config/config_table.h"

namespace mooncake {
namespace {

using client_config::FlagOf;
using client_config::Setting;
using client_config::Settings;
using client_config::Split;

// Edits (insert, delete, replace) that turn one text into the other.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// Code spans of the words, commas between.
std::string Spans(std::string_view words) {
  std::string spans;
  for (std::string_view word : Split(words, ' ')) {
    spans.append(spans.empty() ? "`" : ", `").append(word).append("`");
  }
  return spans;
}

// Text in which the table's own separator is harmless.
std::string Cell(std::string_view text) {
  std::string cell;
  for (char c : text) {
    if (c == '<') {
      cell.append("&lt;");
    } else if (c == '|') {
      cell.append("\\|");
    } else {
      cell.push_back(c);
    }
  }
  return cell;
}

void AppendRow(const Setting& setting, std::string& page) {
  page.append("| `").append(setting.name).append("` | ").append(Spans(setting.aliases));
  page.append(" | `").append(FlagOf(setting.name)).append("` | ");
  page.append(Spans(setting.environment)).append(" | ").append(setting.type).append(" | ");
  page.append(setting.initial.empty() ? "" : Spans(setting.initial)).append(" | ");
  page.append(Cell(setting.allowed)).append(" | ").append(Cell(setting.help)).append(" |\n");
}

}  // namespace

std::string NearestConfigName(const std::string& name) {
  if (IsConfigName(name)) return {};
  std::string folded = client_config::Lower(name);
  std::replace(folded.begin(), folded.end(), '-', '_');
  std::string nearest;
  size_t distance_max = std::max<size_t>(2, name.size() / 3) + 1;
  for (const Setting& setting : Settings()) {
    std::vector<std::string_view> names = Split(setting.aliases, ' ');
    names.insert(names.begin(), setting.name);
    for (std::string_view known : names) {
      // The lengths alone may differ by more, and a long text takes long to compare.
      if (folded.size() >= known.size() + distance_max) continue;
      const size_t distance = EditDistance(folded, known);
      if (distance >= distance_max) continue;
      distance_max = distance;
      nearest = known;
    }
  }
  return nearest;
}

bool IsConfigName(const std::string& name) { return client_config::FindSetting(name) != nullptr; }

std::string ConfigTableMarkdown() {
  std::string page =
      "| Name | Other names | Flag | Environment | Type | Default | Allowed | Meaning |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const Setting& setting : Settings()) AppendRow(setting, page);
  return page;
}

}  // namespace mooncake

// The one line of an offer: JSON with short names, since every rank reads one of every other rank.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/recovery/restore_plan.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

Json HeldToJson(const HeldState& held) {
  return {{"kind", static_cast<int>(held.kind)},
          {"iteration", held.iteration},
          {"epoch", held.epoch},
          {"layout", held.layout},
          {"pieces", held.pieces},
          {"of", held.num_pieces}};
}

HeldState HeldFromJson(const Json& json) {
  HeldState held;
  const int kind = json.at("kind").get<int>();
  if (kind < 0 || kind > static_cast<int>(HeldState::Kind::kBuddySnapshot)) {
    throw Json::out_of_range::create(401, "kind of held state", &json);
  }
  held.kind = static_cast<HeldState::Kind>(kind);
  held.iteration = json.at("iteration").get<int64_t>();
  held.epoch = json.at("epoch").get<int64_t>();
  held.layout = json.at("layout").get<std::string>();
  held.pieces = json.at("pieces").get<std::vector<int64_t>>();
  held.num_pieces = json.at("of").get<int64_t>();
  return held;
}

}  // namespace

std::string EncodeOffer(const MemberOffer& offer) {
  Json json = {{"held", Json::array()}, {"layout", offer.layout}, {"needs", offer.needs}};
  for (const HeldState& held : offer.held) json["held"].push_back(HeldToJson(held));
  if (offer.prepared) json["prepared"] = offer.prepared_epoch;
  if (offer.agreed.has_value()) {
    json["agreed"] = {{"vector", *offer.agreed},
                      {"iteration", offer.agreed_iteration},
                      {"epoch", offer.agreed_epoch}};
  }
  json["checkpoint"] = offer.checkpoint;
  return json.dump();
}

absl::StatusOr<MemberOffer> DecodeOffer(absl::string_view text) {
  try {
    const Json json = Json::parse(text.begin(), text.end());
    MemberOffer offer;
    for (const Json& held : json.at("held")) offer.held.push_back(HeldFromJson(held));
    offer.layout = json.at("layout").get<std::string>();
    offer.needs = json.at("needs").get<std::vector<int64_t>>();
    if (const auto it = json.find("prepared"); it != json.end()) {
      offer.prepared = true;
      offer.prepared_epoch = it->get<int64_t>();
    }
    if (const auto it = json.find("agreed"); it != json.end()) {
      offer.agreed = it->at("vector").get<AgreementVector>();
      offer.agreed_iteration = it->at("iteration").get<int64_t>();
      offer.agreed_epoch = it->at("epoch").get<int64_t>();
    }
    offer.checkpoint = json.at("checkpoint").get<int64_t>();
    return offer;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("a member's offer: ", error.what()));
  }
}

}  // namespace muster

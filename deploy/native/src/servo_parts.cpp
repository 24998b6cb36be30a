// The servo's reader of observations, writer of commands, and asker for chunks.

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "servo.hpp"

namespace robotrl {

namespace {

enum class RobotCommand : int64_t { ACT = 1, RESET = 2 };
constexpr int64_t SETTLE_NS = 100'000'000, SETTLE_SLEEP_NS = 1'000'000;

void reserve(Message& message, int64_t values) { message.values.reserve(size_t(values)); }

}  // namespace

// observer

Observer::Observer(const Settings& settings, const SharedMemory& robot, Clock& clock)
    : settings_(settings), clock_(clock), observations_(robot.at(size_t(settings.observation_at)),
                                                        settings.max_observation) {
    for (const CameraPlace& camera : settings.cameras)
        cameras_.emplace_back(robot.at(size_t(camera.offset)), camera.slot_bytes, camera.slots);
    reserve(latest_, settings.max_observation);
    reserve(last_, settings.max_observation);
}

bool Observer::update(int64_t episode) {
    if (observations_.read(latest_) && latest_.episode == episode) {
        std::swap(latest_, last_);
        known_ = true;
    }
    return known_ && last_.episode == episode;
}

int Observer::missing(int64_t episode) {
    if (!update(episode)) return OBSERVATION;
    for (size_t i = 0; i < cameras_.size(); ++i) {
        CameraFrame frame;
        if (!cameras_[i].newest(frame) || frame.episode != episode) return int(i);
    }
    return NOTHING;
}

void Observer::open_tick(OpenTick& into, int64_t tick, int64_t woke, int64_t episode) {
    const bool whole = known_ && int64_t(last_.values.size()) == settings_.observation_size;
    int64_t stamp = known_ ? last_.stamp_ns : woke;
    into.frames.clear();
    for (const CameraSlots& camera : cameras_) {
        CameraFrame frame;
        if (!camera.newest(frame) || frame.episode != episode) continue;
        into.frames.push_back(frame);
        // the oldest of what the policy sees counts
        stamp = std::min(stamp, frame.stamp_ns);
    }
    if (whole)
        into.observation = last_.values;
    else
        into.observation.clear();
    const int64_t now = clock_.now_ns();
    into.tick = tick;
    into.woke = woke;
    into.age_ns = now - stamp;
    into.read_ns = now - woke;
    into.stamp_ns = stamp;
    into.complete = whole && into.frames.size() == cameras_.size();
    into.asked = -1;
    into.committed = 0;
}

// commander

Commander::Commander(const Settings& settings, const SharedMemory& robot, Observer& observer, Clock& clock)
    : settings_(settings),
      clock_(clock),
      observer_(observer),
      commands_(robot.at(size_t(settings.command_at)), settings.max_action),
      action_(settings.limits.neutral),
      before_(settings.limits.neutral) {
    reserve(message_, settings.max_action);
    reserve(echo_, settings.max_observation);
}

void Commander::begin(int64_t episode, int64_t state_id) {
    episode_ = episode;
    state_id_ = state_id;
    mode_ = HOLD;
    reason_ = NONE;
    action_ = before_ = settings_.limits.neutral;
}

void Commander::reset() {
    message_.stamp_ns = clock_.now_ns();
    message_.tick = message_.reason = 0;
    message_.mode = settings_.dry_run ? HOLD : ACTIVE;
    message_.values.clear();
    message_.episode = episode_;
    message_.state_id = state_id_;
    message_.kind = int64_t(RobotCommand::RESET);
    if (!settings_.limits.hold_last && !settings_.dry_run)
        for (int64_t place : settings_.action) message_.values.push_back(settings_.limits.neutral[size_t(place)]);
    commands_.write(message_);
}

void Commander::send(int64_t mode, int64_t reason, const std::vector<float>& action,
                     const std::vector<float>& before) {
    before_ = before;
    mode_ = mode;
    reason_ = reason;
    action_ = action;
    ++sent_;
    write(mode, 0);
}

void Commander::repeat(int64_t step) {
    sent_ += settings_.linear && mode_ == ACTIVE;
    write(mode_, step % settings_.steps);
}

void Commander::hold() {
    // a copy: `send` writes to action_
    const std::vector<float> held = settings_.limits.hold_last ? action_ : settings_.limits.neutral;
    send(HOLD, NONE, held, held);
}

void Commander::damp() {
    send(DAMP, STOPPED, settings_.limits.neutral, settings_.limits.neutral);
    settle();
}

void Commander::settle() {
    const int64_t deadline = clock_.now_ns() + SETTLE_NS;
    while (clock_.now_ns() < deadline) {
        if (observer_.newest(echo_) && echo_.echo == sent_) return;
        clock_.sleep(SETTLE_SLEEP_NS);
    }
}

void Commander::write(int64_t mode, int64_t part) {
    const float way = settings_.mean ? 0.5f : float(double(part + 1) / double(settings_.steps));
    message_.stamp_ns = clock_.now_ns();
    message_.tick = sent_;
    message_.episode = episode_;
    message_.state_id = state_id_;
    message_.kind = int64_t(RobotCommand::ACT);
    message_.mode = settings_.dry_run ? int64_t(HOLD) : mode;
    message_.reason = reason_;
    message_.values.clear();
    for (int64_t place : settings_.action) {
        const size_t i = size_t(place);
        const float on_the_way = interpolates() ? before_[i] + way * (action_[i] - before_[i]) : action_[i];
        message_.values.push_back(settings_.dry_run ? settings_.limits.neutral[i] : on_the_way);
    }
    commands_.write(message_);
}

// asker

Asker::Asker(const Settings& settings, const SharedMemory& inference, Latency& latency, Clock& clock)
    : failure(inference.at(size_t(settings.failure_at)), size_t(settings.failure_bytes)),
      settings_(settings),
      clock_(clock),
      latency_(latency),
      requests_(inference.at(size_t(settings.request_at)), settings.max_request),
      answers_(inference.at(size_t(settings.answer_at)), settings.max_chunk) {
    reserve(message_, settings.max_request);
}

void Asker::ask(OpenTick& opened, const std::vector<float>& numbers, const float* planned, int64_t count, int64_t lead,
                int64_t episode, int64_t due_ns) {
    const int64_t committed = std::min(lead, count);
    ++serial_;
    ++decision_;
    opened.asked = decision_;
    opened.committed = committed;
    refused.clear();
    misfit = false;
    request = ChunkRequest{};
    request.present = true;
    request.serial = serial_;
    request.decision = decision_;
    request.tick = opened.tick;
    request.stamp_ns = opened.stamp_ns;
    request.asked_ns = clock_.now_ns();
    request.lead = lead;
    request.delay = settings_.trained ? committed : 0;
    message_.stamp_ns = opened.stamp_ns;
    message_.tick = serial_;
    message_.episode = episode;
    message_.state_id = decision_;
    message_.mode = committed > 0;
    message_.lost_ns = due_ns;
    message_.values.assign(numbers.begin(), numbers.end());
    if (committed > 0) {
        const int64_t width = int64_t(settings_.limits.low.size()), steps = settings_.most_planned;
        // a guided sampler knows all that is planned, and weighs it; any other one what is committed
        const int64_t within = std::min(count, steps), known = settings_.guided ? within : std::min(within, committed);
        const float* weights = nullptr;
        if (settings_.guided)
            weights = settings_.overlap.data() + (std::min(committed, known) * (steps + 1) + known) * steps;
        for (const PrefixPort& port : settings_.prefix)
            for (int64_t i = 0; i < port.size; ++i)
                if (port.mask)
                    message_.values.push_back(weights ? (i < steps ? weights[i] : 0.0f) : i < known ? 1.0f : 0.0f);
                else
                    message_.values.push_back(i < known * width ? planned[i] : 0.0f);
    }
    for (const CameraFrame& frame : opened.frames) {
        float bits[2];
        std::memcpy(bits, &frame.number, sizeof bits);
        message_.values.insert(message_.values.end(), bits, bits + 2);
    }
    requests_.write(message_);
    const char ring = 0;
    // where it cannot be written, the process that infers is frozen or dead: no answer comes, and the robot is held
    if (write(int(settings_.doorbell), &ring, 1) != 1) return;
}

bool Asker::answered(Message& answer, ChunkRequest& found) {
    if (!request.present || !answers_.read(answer) || answer.tick != request.serial) return false;
    found = request;
    request.present = false;
    answer_ns = clock_.now_ns() - found.asked_ns;
    latency_.add(answer_ns);
    return true;
}

int64_t Asker::take_round_trip() {
    const int64_t found = answer_ns;
    answer_ns = 0;
    return found;
}

}  // namespace robotrl
